#include "tessera/train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "tessera/base/format.h"

namespace tessera::train {

using std::chrono::duration;
using std::chrono::steady_clock;

namespace {

constexpr int64_t kBarWidth = 24;
constexpr std::chrono::seconds kBetweenLines{10};  // where nothing can be redrawn
constexpr double kSmoothing = 0.2;                 // weight of the newest step in the tokens per second

}  // namespace

Progress::Progress(int64_t first_step, int64_t last_step)
    : first_step_(first_step),
      last_step_(last_step),
      on_terminal_(isatty(STDERR_FILENO) == 1),
      start_(steady_clock::now()),
      last_step_at_(start_) {}

Progress::~Progress() { pause(); }

std::string Progress::line_of(const ProgressStep& step) const {
  const int64_t done = step.step - first_step_ + 1;
  const duration<double> elapsed = steady_clock::now() - start_;
  const duration<double> left = elapsed / static_cast<double>(done) * static_cast<double>(last_step_ - step.step);
  const int64_t filled = last_step_ > 0 ? kBarWidth * step.step / last_step_ : kBarWidth;
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < kBarWidth) bar += '>';
  bar.resize(kBarWidth, ' ');
  return fmt::format("[{}] {}/{}  loss {:.4f}  lr {:.2e}  {} tokens/s  {} left", bar, step.step, last_step_, step.loss,
                     step.lr, format_count(static_cast<int64_t>(tokens_per_second_)), format_duration(left));
}

void Progress::update(const ProgressStep& step) {
  const auto now = steady_clock::now();
  const double rate = static_cast<double>(step.tokens) / duration<double>(now - last_step_at_).count();
  tokens_per_second_ = tokens_per_second_ == 0 ? rate : (1 - kSmoothing) * tokens_per_second_ + kSmoothing * rate;
  last_step_at_ = now;
  if (on_terminal_) {
    std::fprintf(stderr, "\r\033[K%s", line_of(step).c_str());
    line_open_ = true;
  } else if (step.step == first_step_ || step.step == last_step_ || now - last_line_at_ >= kBetweenLines) {
    std::fprintf(stderr, "%s\n", line_of(step).c_str());
    last_line_at_ = now;
  }
  std::fflush(stderr);
}

void Progress::pause() {
  if (line_open_) std::fputc('\n', stderr);
  line_open_ = false;
}

}  // namespace tessera::train

#include "tessera/train/progress.h"

#include <fmt/format.h>

#include <cstdio>

#include "tessera/base/format.h"
#include "tessera/base/status_line.h"

namespace tessera::train {

using std::chrono::duration;

namespace {

constexpr int64_t kBarWidth = 24;
constexpr std::chrono::seconds kBetweenLines{10};  // where nothing can be redrawn
constexpr double kSmoothing = 0.2;                 // weight of the newest step in the tokens per second

std::string bar_of(int64_t done, int64_t all) {
  const int64_t filled = all > 0 ? kBarWidth * done / all : kBarWidth;
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < kBarWidth) bar += '>';
  bar.resize(kBarWidth, ' ');
  return bar;
}

}  // namespace

Progress::Progress(int64_t first_step, int64_t last_step, bool speaks)
    : first_step_(first_step), last_step_(last_step), speaks_(speaks), last_step_at_(Clock::now()) {}

Progress::~Progress() { keep_status(); }

std::string Progress::step_line(const ProgressStep& step) const {
  const int64_t done = step.step - first_step_ + 1;
  const duration<double> left = stepping_ / static_cast<double>(done) * static_cast<double>(last_step_ - step.step);
  const std::string rate =
      tokens_per_second_ > 0 ? format_count(static_cast<int64_t>(tokens_per_second_)) + " tokens/s  " : "";
  return fmt::format("[{}] {}/{}  loss {:.4f}  lr {:.2e}  {}{} left", bar_of(step.step, last_step_), step.step,
                     last_step_, step.loss, step.lr, rate, format_duration(left));
}

void Progress::show(const std::string& line, bool in_any_case) {
  if (has_status_line()) return show_status(line);
  if (!in_any_case && Clock::now() - last_line_at_ < kBetweenLines) return;
  std::fprintf(stderr, "%s\n", line.c_str());
  std::fflush(stderr);
  last_line_at_ = Clock::now();
}

void Progress::update(const ProgressStep& step) {
  const auto now = Clock::now();
  const duration<double> took = now - last_step_at_;
  const double rate = static_cast<double>(step.tokens) / took.count();
  tokens_per_second_ = tokens_per_second_ == 0 ? rate : (1 - kSmoothing) * tokens_per_second_ + kSmoothing * rate;
  stepping_ += took;
  last_step_at_ = now;
  evaluated_ = 0;
  if (speaks_) show(step_line(step), step.step == first_step_ || step.step == last_step_);
}

void Progress::evaluating(int64_t done, int64_t all) {
  const auto now = Clock::now();
  if (done <= evaluated_ || evaluated_ == 0) evaluation_start_ = last_step_at_;
  evaluated_ = done;
  const duration<double> elapsed = now - evaluation_start_;
  const duration<double> left = elapsed / static_cast<double>(done) * static_cast<double>(all - done);
  if (speaks_) {
    show(fmt::format("[{}] evaluating {}/{}  {} left", bar_of(done, all), format_count(done), format_count(all),
                     format_duration(left)),
         /*in_any_case=*/false);
  }
  last_step_at_ = now;
}

}  // namespace tessera::train

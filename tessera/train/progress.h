// The progress of a run, for people, on standard error: on a terminal a bar that is redrawn, elsewhere a line every few
// seconds.
//
//   [=======>            ]  12/50  loss 7.123  lr 5.0e-05  12,345 tokens/s  1 min 20 s left
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera::train {

struct ProgressStep {
  int64_t step = 0;
  double loss = 0;
  double lr = 0;
  int64_t tokens = 0;  // of this step, all ranks
};

class Progress {
 public:
  Progress(int64_t first_step, int64_t last_step);
  ~Progress();

  void update(const ProgressStep& step);

  // Ends the bar's line, so that something else can be printed; the next update draws it again.
  void pause();

 private:
  std::string line_of(const ProgressStep& step) const;

  int64_t first_step_;
  int64_t last_step_;
  bool on_terminal_;
  bool line_open_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_step_at_;
  std::chrono::steady_clock::time_point last_line_at_;
  double tokens_per_second_ = 0;
};

}  // namespace tessera::train

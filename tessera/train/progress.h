// The progress of a run, for people, on standard error: on a terminal a bar that is redrawn below the log lines,
// elsewhere a line every few seconds.
//
//   [=======>            ]  12/50  loss 7.123  lr 5.0e-05  12,345 tokens/s  1 min 20 s left
//   [=======>            ]  evaluating 120/500  18 s left
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera::train {

struct ProgressStep {
  int64_t step = 0;
  double loss = 0;
  double lr = 0;
  int64_t tokens = 0;  // of this step, all ranks; 0: not counted
};

class Progress {
 public:
  // `speaks`: false on all ranks but one.
  Progress(int64_t first_step, int64_t last_step, bool speaks);
  ~Progress();

  void update(const ProgressStep& step);

  // Of an evaluation, which takes no part in the steps' time. The first call for `done` of fewer than before begins
  // another one.
  void evaluating(int64_t done, int64_t all);

 private:
  using Clock = std::chrono::steady_clock;

  std::string step_line(const ProgressStep& step) const;
  void show(const std::string& line, bool in_any_case);

  int64_t first_step_;
  int64_t last_step_;
  bool speaks_;
  Clock::time_point last_step_at_;
  Clock::time_point last_line_at_;
  std::chrono::duration<double> stepping_{0};  // time that the steps took so far
  Clock::time_point evaluation_start_;
  int64_t evaluated_ = 0;  // samples of the evaluation that runs
  double tokens_per_second_ = 0;
};

}  // namespace tessera::train

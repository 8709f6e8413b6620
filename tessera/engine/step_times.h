// How long the parts of a step take, for the ds_config's wall_clock_breakdown: on rank 0 a line for each micro batch
// and one for each step, of what DeepSpeed calls its timers:
//
//   time (ms) | fwd_microstep: 12.01 | bwd_microstep: 25.80 | step_microstep: 9.70
//   time (ms) | fwd: 12.01 | bwd: 25.80 | step: 9.70
//
// With memory_breakdown each line ends with the process's memory. One thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <optional>

namespace tessera::engine {

class StepTimes {
 public:
  enum Part { kForward, kBackward, kStep };

  // Does nothing unless `on`. `device`: waited for at each reading.
  StepTimes(bool on, bool memory, at::Device device) : on_(on), memory_(memory), device_(device) {}

  // A part, from here to the end of the scope; inside another one it counts as that.
  class Scope {
   public:
    Scope(StepTimes& times, Part part);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepTimes* times_ = nullptr;  // null: nothing to measure
  };

  void end_micro_batch(bool ends_step);

 private:
  using Milliseconds = std::array<double, 3>;  // by Part
  std::chrono::steady_clock::time_point now() const;
  void log(const char* suffix, const Milliseconds& spent) const;

  bool on_;
  bool memory_;
  at::Device device_;
  std::optional<Part> running_;
  std::chrono::steady_clock::time_point begin_;
  Milliseconds of_micro_batch_{};
  Milliseconds of_step_{};
};

}  // namespace tessera::engine

// In which order a pass (a forward and its backward, or a forward alone) gathers the units: recorded in one pass and
// followed in the next, so that what comes next is known beforehand. A pass that takes another way is followed again
// from where it meets the recorded one, and is the record afterwards.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tessera::zero {

class GatherOrder {
 public:
  void gathered(size_t unit);
  void end_pass();

  // What the last pass gathered after the place where this one is; empty in the first.
  std::span<const size_t> upcoming() const { return std::span(recorded_).subspan(position_); }

 private:
  std::vector<size_t> recorded_, current_;
  size_t position_ = 0;
};

}  // namespace tessera::zero

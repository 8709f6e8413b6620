// The fp16 loss scale: gradients below 6e-8 would vanish, so the loss is multiplied before backward and the
// gradients divided in the step. Dynamic scaling searches for the largest scale that does not overflow:
//
//   overflow      hysteresis is 1: scale <- max(scale / 2, min); else hysteresis goes down by one
//   no overflow   `window` good steps since the last overflow: scale <- 2 scale, hysteresis refilled
//                 consecutive_hysteresis: refilled by every good step
//
// As DeepSpeed 0.19.8's DynamicLossScaler counts: the first doubling is at good step window + 1, and lowering the scale
// does not refill the hysteresis. A value with a state of four numbers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "tessera/config/ds_config.h"

namespace tessera::optim {

class LossScaler {
 public:
  // Not enabled: the scale is 1 and stays. `factor`: what a scale is divided and multiplied by.
  explicit LossScaler(const config::LossScaling& options, double factor = 2);

  double scale() const { return scale_; }
  double factor() const { return factor_; }
  bool dynamic() const { return options_.enabled && options_.fixed == 0; }

  // True when one more overflow would find the scale at its minimum with nothing left to lower: training cannot go on.
  // A scale that starts below its minimum rises to it first.
  bool at_the_end() const;

  // After each optimizer step, taken or skipped.
  void update(bool overflow);

  nlohmann::json state() const;
  void set_state(const nlohmann::json& state);

 private:
  config::LossScaling options_;
  double factor_;
  double scale_ = 1;
  int64_t steps_ = 0;
  int64_t last_overflow_ = -1;
  int64_t hysteresis_;
};

}  // namespace tessera::optim

#include "tessera/optim/loss_scaler.h"

#include <algorithm>

namespace tessera::optim {

LossScaler::LossScaler(const config::LossScaling& options, double factor)
    : options_(options), factor_(factor), hysteresis_(options.hysteresis) {
  if (options.enabled) scale_ = options.fixed != 0 ? options.fixed : options.initial;
}

bool LossScaler::at_the_end() const {
  return dynamic() && (options_.hysteresis == 1 || hysteresis_ == 1) && scale_ == options_.min;
}

void LossScaler::update(bool overflow) {
  if (!dynamic()) return;
  if (overflow) {
    if (options_.hysteresis == 1 || hysteresis_ == 1) {
      scale_ = std::max(scale_ / factor_, options_.min);
    } else {
      --hysteresis_;
    }
    last_overflow_ = steps_;
  } else {
    if (options_.consecutive_hysteresis) hysteresis_ = options_.hysteresis;
    const int64_t stable = steps_ - last_overflow_ - 1;
    if (stable > 0 && stable % options_.window == 0) {
      if (!options_.consecutive_hysteresis) hysteresis_ = options_.hysteresis;
      scale_ *= factor_;
    }
  }
  ++steps_;
}

nlohmann::json LossScaler::state() const {
  return {{"scale", scale_}, {"steps", steps_}, {"last_overflow", last_overflow_}, {"hysteresis", hysteresis_}};
}

void LossScaler::set_state(const nlohmann::json& state) {
  if (!dynamic()) return;
  scale_ = state.at("scale");
  steps_ = state.at("steps");
  last_overflow_ = state.at("last_overflow");
  hysteresis_ = state.at("hysteresis");
}

}  // namespace tessera::optim

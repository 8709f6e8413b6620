#include "tessera/engine/stepping.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/zero/delayed_update.h"
#include "tessera/zero/sharded_step.h"

namespace tessera::engine {

Stepping::Stepping(const config::DsConfig& config, zero::ShardedModel& model, const optim::Optimizer& optimizer,
                   TrainingState& state)
    : config_(config), model_(model), optimizer_(optimizer), state_(state) {
  if (config_.own.delayed_update) delayed_ = std::make_unique<zero::DelayedUpdate>(model_, optimizer_);
}

Stepping::~Stepping() = default;

void Stepping::take(int64_t samples) {
  last_ = update({.step = state_.applied_steps() + 1,
                  .max_norm = config_.gradient_clipping,
                  .loss_scale = state_.scaler().scale(),
                  .skip_nonfinite = config_.skip_nonfinite,
                  .name_nonfinite = state_.scaler().at_the_end()});
  taken_ = true;
  state_.count_step(samples, last_.skipped);
  if (last_.skipped) {
    after_skipped_step();
  } else {
    state_.scaler().update(/*overflow=*/false);
  }
}

zero::StepResult Stepping::update(const zero::StepInput& input) {
  const bool delays = delayed_ && input.step > config_.own.delayed_update_after;
  return delays ? delayed_->step(state_.groups(), input)
                : zero::sharded_step(model_, optimizer_, state_.groups(), input);
}

void Stepping::finish_update() {
  if (delayed_) delayed_->finish();
  model_.finish_publishing();
}

void Stepping::after_skipped_step() {
  const double scale = state_.scaler().scale();
  if (state_.scaler().at_the_end()) {
    throw Error(ErrorKind::kData,
                {fmt::format("step {} overflowed with the loss scale at its minimum, {}", state_.global_steps(), scale),
                 fmt::format("non-finite gradients: {}", fmt::join(last_.nonfinite, ", ")),
                 "train in bf16 or fp32, lower the learning rate, or look for a division by zero in these layers"});
  }
  state_.scaler().update(/*overflow=*/true);
  if (model_.world().rank() != 0) return;
  if (config_.loss_scaling.enabled) {
    log_warning("OVERFLOW: step {} was skipped; loss scale {} -> {}", state_.global_steps(), scale,
                state_.scaler().scale());
  } else {
    log_warning("step {} was skipped: the gradient norm is {}", state_.global_steps(), last_.grad_norm);
  }
}

void Stepping::log() const {
  const bool due = config_.steps_per_print && state_.global_steps() % *config_.steps_per_print == 0;
  if (!due || model_.world().rank() != 0) return;
  std::vector<std::string> rates, moments;
  for (const optim::ParamGroup& group : state_.groups()) {
    rates.push_back(fmt::format("{}", group.lr));
    moments.push_back(fmt::format("[{}, {}]", group.beta1, group.beta2));
  }
  log_info("step={}, skipped={}, lr=[{}], mom=[{}]", state_.global_steps(), state_.skipped_steps(),
           fmt::join(rates, ", "), fmt::join(moments, ", "));
}

}  // namespace tessera::engine

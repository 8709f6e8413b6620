#include "tessera/zero/sharded_step.h"

#include <ATen/core/grad_mode.h>

namespace tessera::zero {

StepResult sharded_step(ShardedModel& model, const optim::Optimizer& optimizer,
                        std::span<const optim::ParamGroup> groups, const StepInput& input) {
  const at::NoGradGuard no_grad;
  model.let_go_all();
  const StepPlan plan = plan_step(model, input);
  if (!plan.result.skipped) {
    StateTiles tiles(model, optimizer.elementwise());
    update_state(model, tiles, optimizer, groups, plan, [](Unit& unit) { unit.start_publish(); });
    if (!model.policy().publishes_lazily) model.finish_publishing();
    model.finish_persistent();
  }
  model.reducer().clear();
  return plan.result;
}

void round_master_weights(ShardedModel& model) {
  for (const auto& unit : model.units()) {
    unit->refresh_compute();
    unit->round_master();
  }
}

void publish_parameters(ShardedModel& model) {
  const at::NoGradGuard no_grad;
  model.let_go_all();
  for (const auto& unit : model.units()) {
    unit->refresh_compute();
    unit->start_publish();
  }
  model.finish_publishing();
}

}  // namespace tessera::zero

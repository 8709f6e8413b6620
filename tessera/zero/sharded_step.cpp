#include "tessera/zero/sharded_step.h"

#include <ATen/core/grad_mode.h>

namespace tessera::zero {
namespace {

void finish_all(std::vector<comm::Collective>& collectives) {
  for (comm::Collective& collective : collectives) {
    if (collective.in_flight()) collective.finish();
  }
}

}  // namespace

StepResult sharded_step(ShardedModel& model, const optim::Optimizer& optimizer,
                        std::span<const optim::ParamGroup> groups, const StepInput& input) {
  const at::NoGradGuard no_grad;
  model.let_go_all();
  const StepPlan plan = plan_step(model, input);
  if (!plan.result.skipped) {
    std::vector<comm::Collective> publishing;
    StateTiles tiles(model, optimizer.elementwise());
    update_state(model, tiles, optimizer, groups, plan,
                 [&](Unit& unit) { publishing.push_back(unit.start_publish()); });
    finish_all(publishing);
  }
  model.reducer().clear();
  return plan.result;
}

void publish_parameters(ShardedModel& model) {
  const at::NoGradGuard no_grad;
  model.let_go_all();
  std::vector<comm::Collective> publishing;
  for (const auto& unit : model.units()) {
    unit->refresh_compute();
    publishing.push_back(unit->start_publish());
  }
  finish_all(publishing);
}

}  // namespace tessera::zero

#include "tessera/zero/delayed_update.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>

#include <optional>

#include "tessera/base/error.h"
#include "tessera/comm/current_stream.h"
#include "tessera/zero/sharded_step.h"

namespace tessera::zero {
namespace {

[[noreturn]] void refuse(const std::string& why, const std::string& fix) {
  throw Error(ErrorKind::kConfig, {"a delayed update " + why, "tessera.delayed_update", fix});
}

// On which a device computes, for another thread to go on there.
std::optional<c10::Stream> stream_of(const ShardedModel& model) {
  const at::Device device = model.policy().device.value_or(at::kCPU);
  return device.is_cpu() ? std::nullopt : std::optional(comm::current_stream(device));
}

}  // namespace

DelayedUpdate::DelayedUpdate(ShardedModel& model, const optim::Optimizer& optimizer)
    : model_(model), optimizer_(optimizer), grads_(model.units().size()) {
  const Policy& policy = model.policy();
  if (!policy.has_master()) {
    refuse("needs master weights apart from those that forward uses", "enable bf16 or fp16, or remove the key");
  }
  if (!optimizer.elementwise()) {
    refuse("needs an optimizer that updates each element independently", "use Adam, AdamW, Lion, Adagrad or SGD");
  }
  if (policy.offload.optimizer || policy.offload.parameters) {
    refuse("works only on state in memory", "offload to cpu instead of nvme, or remove the key");
  }
}

DelayedUpdate::~DelayedUpdate() {
  if (running_.valid()) running_.wait();
}

void DelayedUpdate::take_gradients() {
  const at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < grads_.size(); ++unit) {
    if (!model_.units()[unit]->trainable()) continue;
    const at::Tensor owned = model_.reducer().owned_grad(unit);
    if (!grads_[unit].defined()) grads_[unit] = at::empty_like(owned);
    grads_[unit].copy_(owned);
  }
}

StepResult DelayedUpdate::step(std::span<const optim::ParamGroup> groups, const StepInput& input) {
  finish();
  model_.finish_publishing();  // of the steps before updates began to be delayed
  StepPlan plan = plan_step(model_, input);
  StepResult result = plan.result;
  if (!result.skipped) {
    take_gradients();
    running_ = std::async(
        std::launch::async,
        [this, plan = std::move(plan), groups = std::vector(groups.begin(), groups.end()), stream = stream_of(model_)] {
          at::init_num_threads();  // as many as the thread that trains has
          const c10::OptionalStreamGuard same_order(stream);
          StateTiles tiles(model_, optimizer_.elementwise(), &grads_);
          update_state(model_, tiles, optimizer_, groups, plan, [](Unit&) {});
        });
  }
  model_.reducer().clear();
  return result;
}

void DelayedUpdate::finish() {
  if (!running_.valid()) return;
  running_.get();
  publish_parameters(model_);
}

}  // namespace tessera::zero

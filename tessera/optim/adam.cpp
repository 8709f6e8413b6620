#include "tessera/optim/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <map>
#include <mutex>
#include <optional>

#include "tessera/base/log.h"
#include "tessera/optim/adam_kernel.h"

namespace tessera::optim {

namespace {

constexpr double kVeryLate = 1e9;  // a step at which 1 - beta^t is 1

}  // namespace

std::vector<std::string> Adam::state_names() const {
  if (options_.amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

void Adam::update(std::span<ParamShard> shards, const UpdateInput& input) const {
  static std::once_flag said;
  std::call_once(said, [] { log_debug("Adam's own kernel uses {} instructions", adam_kernel_instructions()); });

  std::vector<std::vector<ParamShard*>> fused(input.groups.size());
  for (ParamShard& shard : shards) {
    if (fits_fused(shard)) {
      fused[shard.group].push_back(&shard);
      continue;
    }
    const ParamGroup& group = input.groups[shard.group];
    const auto t = static_cast<double>(shard.step);
    AdamKernelStep step{
        .group = group, .decoupled_decay = options_.decoupled_decay, .grad_divisor = input.grad_divisor};
    if (options_.bias_correction) {
      step.correction1 = 1 - std::pow(group.beta1, t);
      step.correction2 = 1 - std::pow(group.beta2, t);
    }
    adam_kernel(step, shard.grad, shard.weight, shard.state[0], shard.state[1], shard.compute);
  }
  for (size_t index = 0; index < fused.size(); ++index) {
    if (!fused[index].empty()) update_fused(fused[index], input.groups[index], input.grad_divisor);
  }
}

// LibTorch's operators know one dtype, and always correct the bias: by nothing at a very late step, see update_fused().
// On a device, and for AMSGrad, no shard is given in another dtype, see state_update.cpp.
bool Adam::fits_fused(const ParamShard& shard) const {
  if (!shard.weight.is_cpu() || options_.amsgrad) return true;
  return options_.bias_correction && !shard.compute.defined() && shard.weight.scalar_type() == at::kFloat &&
         shard.grad.scalar_type() == at::kFloat && shard.state[0].scalar_type() == at::kFloat;
}

void Adam::update_fused(std::span<ParamShard* const> shards, const ParamGroup& group, double grad_divisor) const {
  const at::TensorOptions number = shards.front()->weight.options();
  std::optional<at::Tensor> divisor;
  if (grad_divisor != 1) divisor = at::full({}, grad_divisor, number);
  std::vector<at::Tensor> weights, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps;
  std::map<int64_t, at::Tensor> step_tensors;  // the operator only reads them: most parameters have seen the same steps
  for (const ParamShard* const shard : shards) {
    weights.push_back(shard->weight);
    grads.push_back(shard->grad);
    exp_avgs.push_back(shard->state[0]);
    exp_avg_sqs.push_back(shard->state[1]);
    if (options_.amsgrad) max_exp_avg_sqs.push_back(shard->state[2]);
    at::Tensor& step = step_tensors[shard->step];
    const double corrects_as = options_.bias_correction ? static_cast<double>(shard->step) : kVeryLate;
    if (!step.defined()) step = at::full({}, corrects_as, number);
    steps.push_back(step);
  }
  const auto fused = options_.decoupled_decay
                         ? static_cast<decltype(&at::_ops::_fused_adamw_::call)>(&at::_ops::_fused_adamw_::call)
                         : &at::_ops::_fused_adam_::call;
  fused(weights, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, group.lr, group.beta1, group.beta2,
        group.weight_decay, group.eps, options_.amsgrad, /*maximize=*/false, divisor, /*found_inf=*/{});
}

}  // namespace tessera::optim

#include "tessera/optim/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <optional>

namespace tessera::optim {

std::vector<std::string> Adam::state_names() const { return {"exp_avg", "exp_avg_sq"}; }

void Adam::update(std::span<ParamSlice> slices, const UpdateInput& input) const {
  if (!options_.bias_correction) {
    for (ParamSlice& slice : slices) update_uncorrected(slice, input.groups[slice.group], input.grad_divisor);
    return;
  }
  std::optional<at::Tensor> divisor;
  if (input.grad_divisor != 1) divisor = at::full({}, input.grad_divisor, at::kFloat);
  for (size_t index = 0; index < input.groups.size(); ++index) {
    std::vector<at::Tensor> weights, grads, exp_avgs, exp_avg_sqs, steps;
    for (const ParamSlice& slice : slices) {
      if (slice.group != index) continue;
      weights.push_back(slice.weight);
      grads.push_back(slice.grad);
      exp_avgs.push_back(slice.state[0]);
      exp_avg_sqs.push_back(slice.state[1]);
      steps.push_back(at::full({}, static_cast<double>(slice.step), at::kFloat));
    }
    if (weights.empty()) continue;
    const ParamGroup& group = input.groups[index];
    const auto fused = options_.decoupled_decay
                           ? static_cast<decltype(&at::_ops::_fused_adamw_::call)>(&at::_ops::_fused_adamw_::call)
                           : &at::_ops::_fused_adam_::call;
    fused(weights, grads, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps, group.lr, group.beta1, group.beta2,
          group.weight_decay, group.eps, /*amsgrad=*/false, /*maximize=*/false, divisor, /*found_inf=*/{});
  }
}

void Adam::update_uncorrected(ParamSlice& slice, const ParamGroup& group, double grad_divisor) const {
  at::Tensor& weight = slice.weight;
  at::Tensor& grad = slice.grad;
  at::Tensor& exp_avg = slice.state[0];
  at::Tensor& exp_avg_sq = slice.state[1];
  if (grad_divisor != 1) grad.div_(grad_divisor);
  if (options_.decoupled_decay) {
    weight.mul_(1 - group.lr * group.weight_decay);
  } else if (group.weight_decay != 0) {
    grad.add_(weight, group.weight_decay);
  }
  exp_avg.mul_(group.beta1).add_(grad, 1 - group.beta1);
  exp_avg_sq.mul_(group.beta2).addcmul_(grad, grad, 1 - group.beta2);
  weight.addcdiv_(exp_avg, exp_avg_sq.sqrt().add_(group.eps), -group.lr);
}

}  // namespace tessera::optim

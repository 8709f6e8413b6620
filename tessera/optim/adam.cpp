#include "tessera/optim/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <mutex>
#include <optional>

#include "tessera/base/log.h"
#include "tessera/optim/adam_kernel.h"

namespace tessera::optim {

namespace {

constexpr double kVeryLate = 1e9;  // a step at which 1 - beta^t is 1

}  // namespace

std::vector<std::string> Adam::state_names() const { return {"exp_avg", "exp_avg_sq"}; }

void Adam::update(std::span<ParamSlice> slices, const UpdateInput& input) const {
  static std::once_flag said;
  std::call_once(said, [] { log_debug("Adam's own kernel uses {} instructions", adam_kernel_instructions()); });

  std::vector<std::vector<ParamSlice*>> fused(input.groups.size());
  for (ParamSlice& slice : slices) {
    if (fits_fused(slice)) {
      fused[slice.group].push_back(&slice);
      continue;
    }
    const ParamGroup& group = input.groups[slice.group];
    const auto t = static_cast<double>(slice.step);
    AdamKernelStep step{
        .group = group, .decoupled_decay = options_.decoupled_decay, .grad_divisor = input.grad_divisor};
    if (options_.bias_correction) {
      step.correction1 = 1 - std::pow(group.beta1, t);
      step.correction2 = 1 - std::pow(group.beta2, t);
    }
    adam_kernel(step, slice.grad, slice.weight, slice.state[0], slice.state[1], slice.compute);
  }
  for (size_t index = 0; index < fused.size(); ++index) {
    if (!fused[index].empty()) update_fused(fused[index], input.groups[index], input.grad_divisor);
  }
}

// LibTorch's operators know one dtype, and always correct the bias: by nothing at a very late step, see update_fused().
// There no slice is given in another dtype, see state_update.cpp.
bool Adam::fits_fused(const ParamSlice& slice) const {
  if (!slice.weight.is_cpu()) return true;
  return options_.bias_correction && !slice.compute.defined() && slice.weight.scalar_type() == at::kFloat &&
         slice.grad.scalar_type() == at::kFloat && slice.state[0].scalar_type() == at::kFloat;
}

void Adam::update_fused(std::span<ParamSlice* const> slices, const ParamGroup& group, double grad_divisor) const {
  const at::TensorOptions number = slices.front()->weight.options();
  std::optional<at::Tensor> divisor;
  if (grad_divisor != 1) divisor = at::full({}, grad_divisor, number);
  std::vector<at::Tensor> weights, grads, exp_avgs, exp_avg_sqs, steps;
  for (const ParamSlice* const slice : slices) {
    weights.push_back(slice->weight);
    grads.push_back(slice->grad);
    exp_avgs.push_back(slice->state[0]);
    exp_avg_sqs.push_back(slice->state[1]);
    steps.push_back(at::full({}, options_.bias_correction ? static_cast<double>(slice->step) : kVeryLate, number));
  }
  const auto fused = options_.decoupled_decay
                         ? static_cast<decltype(&at::_ops::_fused_adamw_::call)>(&at::_ops::_fused_adamw_::call)
                         : &at::_ops::_fused_adam_::call;
  fused(weights, grads, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps, group.lr, group.beta1, group.beta2,
        group.weight_decay, group.eps, /*amsgrad=*/false, /*maximize=*/false, divisor, /*found_inf=*/{});
}

}  // namespace tessera::optim

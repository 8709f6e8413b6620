#include "tessera/optim/lion.h"

namespace tessera::optim {

void Lion::update(std::span<ParamSlice> slices, const UpdateInput& input) const {
  for (ParamSlice& slice : slices) {
    const ParamGroup& group = input.groups[slice.group];
    at::Tensor& exp_avg = slice.state[0];
    if (input.grad_divisor != 1) slice.grad.div_(input.grad_divisor);
    if (group.weight_decay != 0) slice.weight.mul_(1 - group.lr * group.weight_decay);
    slice.weight.sub_(exp_avg.mul(group.beta1).add_(slice.grad, 1 - group.beta1).sign_(), group.lr);
    exp_avg.mul_(group.beta2).add_(slice.grad, 1 - group.beta2);
  }
}

}  // namespace tessera::optim

#include "tessera/optim/onebit_adam.h"

#include "tessera/optim/signed_mean.h"

namespace tessera::optim {

void OneBitAdam::update(std::span<ParamSlice> slices, const UpdateInput& input) const {
  const bool warm_up = !takes_own_gradients(input.step);
  for (ParamSlice& slice : slices) {
    const ParamGroup& group = input.groups[slice.group];
    if (input.grad_divisor != 1) slice.grad.div_(input.grad_divisor);
    if (!warm_up) silence_unseen(slice, /*second_moment=*/1);
    slice.state[0].mul_(group.beta1).add_(slice.grad, 1 - group.beta1);
    if (warm_up) slice.state[1].mul_(group.beta2).addcmul_(slice.grad, slice.grad, 1 - group.beta2);
  }
  if (!warm_up) mean_state_by_signs(slices, input, /*state=*/0, /*live=*/1);
  for (ParamSlice& slice : slices) {
    const ParamGroup& group = input.groups[slice.group];
    at::Tensor& direction = slice.grad;
    direction.copy_(slice.state[1]).sqrt_().add_(group.eps).reciprocal_().mul_(slice.state[0]);
    if (group.weight_decay != 0) direction.add_(slice.weight, group.weight_decay);
    slice.weight.sub_(direction, group.lr);
  }
}

}  // namespace tessera::optim

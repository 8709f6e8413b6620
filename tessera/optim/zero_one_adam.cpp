#include "tessera/optim/zero_one_adam.h"

#include <algorithm>

#include "tessera/optim/signed_mean.h"

namespace tessera::optim {
namespace {

enum State : size_t { kMomentum, kVariance, kAccumulator, kMetWeight };
enum Number : size_t { kLrSum };

}  // namespace

bool ZeroOneAdam::renews_variance(int64_t step) const {
  if (is_local(step)) return false;
  int64_t interval = 1;
  int64_t last = 0;  // step of the interval's last renewal, once it had all of them
  while (true) {
    const int64_t end = (last / interval + options_.var_update_scaler) * interval;
    if (step <= end) return step % interval == 0;
    last = end;
    interval *= 2;
  }
}

bool ZeroOneAdam::ranks_meet(int64_t step) const {
  const int64_t doublings = (step - options_.var_freeze_step - 1) / options_.local_step_scaler;
  int64_t interval = 1;
  for (int64_t i = 0; i < doublings && interval < options_.local_step_clipper; ++i) interval *= 2;
  return step % std::min(interval, options_.local_step_clipper) == 0;
}

void ZeroOneAdam::update(std::span<ParamSlice> slices, const UpdateInput& input) const {
  const bool local = is_local(input.step), renews = renews_variance(input.step);
  for (ParamSlice& slice : slices) {
    const ParamGroup& group = input.groups[slice.group];
    if (input.grad_divisor != 1) slice.grad.div_(input.grad_divisor);
    if (!renews) silence_unseen(slice, kVariance);
    if (renews) slice.state[kVariance].mul_(group.beta2).addcmul_(slice.grad, slice.grad, 1 - group.beta2);
  }
  if (!renews && !local) mean_grad_by_signs(slices, input, kVariance);
  // What is lost of momenta is of another size than what was lost of gradients.
  if (input.step == options_.var_freeze_step + 1) input.peers->clear_sign_errors();

  for (ParamSlice& slice : slices) {
    const ParamGroup& group = input.groups[slice.group];
    at::Tensor& momentum = slice.state[kMomentum];
    if (local && slice.numbers[kLrSum] == 0) slice.state[kMetWeight].copy_(slice.weight);
    momentum.mul_(group.beta1).add_(slice.grad, 1 - group.beta1);
    at::Tensor& direction = slice.grad;
    direction.copy_(slice.state[kVariance]).sqrt_().add_(group.eps).reciprocal_().mul_(momentum);
    if (group.weight_decay != 0) direction.add_(slice.weight, group.weight_decay);
    slice.weight.sub_(direction, group.lr);
    if (local) slice.state[kAccumulator].add_(momentum, group.lr);
  }
  if (!local) return;
  for (ParamSlice& slice : slices) {
    if (slice.first == 0) slice.numbers[kLrSum] += input.groups[slice.group].lr;
  }
  if (ranks_meet(input.step)) meet(slices, input);
}

void ZeroOneAdam::meet(std::span<ParamSlice> slices, const UpdateInput& input) const {
  mean_state_by_signs(slices, input, kAccumulator, kVariance);
  for (ParamSlice& slice : slices) {
    const ParamGroup& group = input.groups[slice.group];
    const double lr_sum = slice.numbers[kLrSum];
    at::Tensor& moved = slice.state[kAccumulator];
    if (lr_sum != 0) slice.state[kMomentum].copy_(moved).div_(lr_sum);
    at::Tensor& direction = slice.grad;
    direction.copy_(slice.state[kVariance]).sqrt_().add_(group.eps).reciprocal_().mul_(moved);
    slice.weight.copy_(slice.state[kMetWeight]).mul_(1 - lr_sum * group.weight_decay).sub_(direction);
    moved.zero_();
  }
  for (ParamSlice& slice : slices) slice.numbers[kLrSum] = 0;
}

}  // namespace tessera::optim

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

void ZeroOneAdam::update(std::span<ParamShard> shards, const UpdateInput& input) const {
  const bool local = is_local(input.step), renews = renews_variance(input.step);
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    if (input.grad_divisor != 1) shard.grad.div_(input.grad_divisor);
    if (!renews) silence_unseen(shard, kVariance);
    if (renews) shard.state[kVariance].mul_(group.beta2).addcmul_(shard.grad, shard.grad, 1 - group.beta2);
  }
  if (!renews && !local) mean_grad_by_signs(shards, input, kVariance);
  // What is lost of momenta is of another size than what was lost of gradients.
  if (input.step == options_.var_freeze_step + 1) input.peers->clear_sign_errors();

  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    at::Tensor& momentum = shard.state[kMomentum];
    if (local && shard.numbers[kLrSum] == 0) shard.state[kMetWeight].copy_(shard.weight);
    momentum.mul_(group.beta1).add_(shard.grad, 1 - group.beta1);
    at::Tensor& direction = shard.grad;
    direction.copy_(shard.state[kVariance]).sqrt_().add_(group.eps).reciprocal_().mul_(momentum);
    if (group.weight_decay != 0) direction.add_(shard.weight, group.weight_decay);
    shard.weight.sub_(direction, group.lr);
    if (local) shard.state[kAccumulator].add_(momentum, group.lr);
  }
  if (!local) return;
  for (ParamShard& shard : shards) {
    if (shard.first == 0) shard.numbers[kLrSum] += input.groups[shard.group].lr;
  }
  if (ranks_meet(input.step)) meet(shards, input);
}

void ZeroOneAdam::meet(std::span<ParamShard> shards, const UpdateInput& input) const {
  mean_state_by_signs(shards, input, kAccumulator, kVariance);
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    const double lr_sum = shard.numbers[kLrSum];
    at::Tensor& moved = shard.state[kAccumulator];
    if (lr_sum != 0) shard.state[kMomentum].copy_(moved).div_(lr_sum);
    at::Tensor& direction = shard.grad;
    direction.copy_(shard.state[kVariance]).sqrt_().add_(group.eps).reciprocal_().mul_(moved);
    shard.weight.copy_(shard.state[kMetWeight]).mul_(1 - lr_sum * group.weight_decay).sub_(direction);
    moved.zero_();
  }
  for (ParamShard& shard : shards) shard.numbers[kLrSum] = 0;
}

}  // namespace tessera::optim

#include "tessera/optim/onebit_adam.h"

#include "tessera/optim/signed_mean.h"

namespace tessera::optim {

void OneBitAdam::update(std::span<ParamShard> shards, const UpdateInput& input) const {
  const bool warm_up = !takes_own_gradients(input.step);
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    if (input.grad_divisor != 1) shard.grad.div_(input.grad_divisor);
    if (!warm_up) silence_unseen(shard, /*second_moment=*/1);
    shard.state[0].mul_(group.beta1).add_(shard.grad, 1 - group.beta1);
    if (warm_up) shard.state[1].mul_(group.beta2).addcmul_(shard.grad, shard.grad, 1 - group.beta2);
  }
  if (!warm_up) mean_state_by_signs(shards, input, /*state=*/0, /*live=*/1);
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    at::Tensor& direction = shard.grad;
    direction.copy_(shard.state[1]).sqrt_().add_(group.eps).reciprocal_().mul_(shard.state[0]);
    if (group.weight_decay != 0) direction.add_(shard.weight, group.weight_decay);
    shard.weight.sub_(direction, group.lr);
  }
}

}  // namespace tessera::optim

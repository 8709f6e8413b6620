#include "tessera/optim/lion.h"

namespace tessera::optim {

void Lion::update(std::span<ParamShard> shards, const UpdateInput& input) const {
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    at::Tensor& exp_avg = shard.state[0];
    if (input.grad_divisor != 1) shard.grad.div_(input.grad_divisor);
    if (group.weight_decay != 0) shard.weight.mul_(1 - group.lr * group.weight_decay);
    shard.weight.sub_(exp_avg.mul(group.beta1).add_(shard.grad, 1 - group.beta1).sign_(), group.lr);
    exp_avg.mul_(group.beta2).add_(shard.grad, 1 - group.beta2);
  }
}

}  // namespace tessera::optim

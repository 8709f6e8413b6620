#include "tessera/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

namespace tessera::optim {

std::vector<std::string> Sgd::state_names() const {
  if (!options_.has_momentum) return {};
  return {"momentum_buffer"};
}

void Sgd::update(std::span<ParamShard> shards, const UpdateInput& input) const {
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    if (input.grad_divisor != 1) shard.grad.div_(input.grad_divisor);
    std::vector<at::Tensor> weights{shard.weight}, grads{shard.grad};
    at::_fused_sgd_(weights, grads, shard.state, group.weight_decay, options_.has_momentum ? group.momentum : 0,
                    group.lr, options_.dampening, options_.nesterov, options_.maximize,
                    /*is_first_step=*/shard.step == 1);
  }
}

}  // namespace tessera::optim

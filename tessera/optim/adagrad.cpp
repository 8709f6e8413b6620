#include "tessera/optim/adagrad.h"

#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/full.h>

namespace tessera::optim {

void Adagrad::update(std::span<ParamShard> shards, const UpdateInput& input) const {
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    if (input.grad_divisor != 1) shard.grad.div_(input.grad_divisor);
    const at::Tensor step = at::full({}, static_cast<double>(shard.step), shard.weight.options());
    at::_fused_adagrad_({shard.weight}, {shard.grad}, {shard.state[0]}, {step}, group.lr, options_.lr_decay,
                        group.weight_decay, group.eps, options_.maximize);
  }
}

}  // namespace tessera::optim

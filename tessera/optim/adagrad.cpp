#include "tessera/optim/adagrad.h"

#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/full.h>

namespace tessera::optim {

void Adagrad::update(std::span<ParamSlice> slices, const UpdateInput& input) const {
  for (ParamSlice& slice : slices) {
    const ParamGroup& group = input.groups[slice.group];
    if (input.grad_divisor != 1) slice.grad.div_(input.grad_divisor);
    const at::Tensor step = at::full({}, static_cast<double>(slice.step), slice.weight.options());
    at::_fused_adagrad_({slice.weight}, {slice.grad}, {slice.state[0]}, {step}, group.lr, lr_decay_, group.weight_decay,
                        group.eps, /*maximize=*/false);
  }
}

}  // namespace tessera::optim

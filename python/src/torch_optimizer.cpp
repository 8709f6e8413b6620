#include "torch_optimizer.h"

#include <torch/csrc/utils/pybind.h>

namespace tessera::python {

namespace py = pybind11;

TorchOptimizer::~TorchOptimizer() {
  const py::gil_scoped_acquire gil;
  step_ = py::function();
}

void TorchOptimizer::update(std::span<optim::ParamShard> shards, const optim::UpdateInput& input) const {
  const py::gil_scoped_acquire gil;
  py::list parts;
  for (const optim::ParamShard& shard : shards) {
    const optim::WholeParam& whole = input.params[shard.param];
    const int64_t numel = std::min(shard.weight.numel(), whole.numel - shard.first);
    const bool is_whole = shard.first == 0 && numel == whole.numel;
    const auto part = [&](const at::Tensor& tensor) {
      const at::Tensor flat = tensor.narrow(0, 0, numel);
      return is_whole ? flat.view(whole.shape) : flat;
    };
    at::Tensor grad = shard.grad;
    if (input.grad_divisor != 1) grad.div_(input.grad_divisor);
    parts.append(py::make_tuple(whole.name, shard.group, shard.first, part(shard.weight), part(grad)));
  }
  step_(parts);
}

}  // namespace tessera::python

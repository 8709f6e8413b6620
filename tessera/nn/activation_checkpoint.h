// Activation checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"): a function whose
// intermediate results are not kept for backward but computed again there, from its inputs.
//
//   const auto run = [layer](const at::Tensor& x, const at::Tensor& m) { return (*layer)(x, m); };
//   hidden = nn::checkpoint(run, hidden, mask);
//
// calls the function and returns what it returns, of any type. It runs once more in backward, so:
//
//   capture by value     the caller's locals are gone by then; whatever it captured stays alive until backward is done
//   repeat yourself      the same inputs, parameters and random numbers must lead to the same operations
//   change no input      in place; neither the function nor anyone else before backward
//
// The state of the default generators and of autocast is put back to what it was, so dropout repeats. Values
// and gradients have the same bits as without the checkpoint. Inputs may be undefined, or need no gradient: parameters
// get theirs all the same. Checkpoints may be nested; a function may be checkpointed several times. Where
// no gradients are recorded the function is simply called. A function that does something else when it runs again makes
// backward throw tessera::Error.
//
// Note [Left out, not cut out]. The function's operations stay part of the one autograd graph; only the tensors that
// they save for backward are left out of it and filled in later. So autograd runs each hook and accumulates each
// gradient where it would without the checkpoint, and a unit (unit_module.h) is gathered, its gradients reduced and its
// parameters released as usual. A checkpoint that runs a backward pass of its own inside backward, as DeepSpeed's does,
// would hand a parameter that two checkpoints share to the reducer twice, and add its gradients in another order.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <concepts>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace tessera::nn {

namespace detail {

class LeftOutTensors;
class TensorSaver;

// While it lives, what autograd would save on this thread is left out. `run_again` computes it from the inputs.
class CheckpointRecording {
 public:
  CheckpointRecording(std::function<void(const std::vector<at::Tensor>& inputs)> run_again,
                      const std::vector<at::Tensor>& inputs);
  ~CheckpointRecording();
  CheckpointRecording(const CheckpointRecording&) = delete;
  CheckpointRecording& operator=(const CheckpointRecording&) = delete;

 private:
  std::shared_ptr<LeftOutTensors> left_out_;
  std::unique_ptr<TensorSaver> saver_;
};

}  // namespace detail

template <class Function, std::same_as<at::Tensor>... Inputs>
auto checkpoint(Function function, const Inputs&... inputs) {
  if (!at::GradMode::is_enabled()) return function(inputs...);
  const auto shared = std::make_shared<Function>(std::move(function));
  const detail::CheckpointRecording recording(
      [shared](const std::vector<at::Tensor>& again) {
        [&]<size_t... I>(std::index_sequence<I...>) { static_cast<void>((*shared)(again[I]...)); }
        (std::index_sequence_for<Inputs...>());
      },
      {inputs...});
  return (*shared)(inputs...);
}

}  // namespace tessera::nn

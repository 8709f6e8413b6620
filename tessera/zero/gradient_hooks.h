// Autograd's hooks on parameters: each gradient is handed over as it arrives, and hidden from then on, so that nobody
// else takes it for one that is theirs to apply.
//
// A parameter is watched while it is unsharded, because its gradient accumulator, which is kept, records the shape.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera::zero {

class GradientHooks {
 public:
  using Arrived = std::function<void(size_t unit, size_t param, const at::Tensor& parameter)>;

  // `shows_undefined`: a taken gradient is undefined, as in DeepSpeed; else a tensor that throws when it is read
  // (unreadable.h).
  GradientHooks(Arrived arrived, bool shows_undefined)
      : arrived_(std::move(arrived)), shows_undefined_(shows_undefined) {}
  ~GradientHooks();  // takes the hooks away
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // `arrived` is called with these numbers from autograd's backward.
  void watch(const at::Tensor& parameter, const std::string& name, size_t unit, size_t param);

  // The gradient was taken.
  void hide(const at::Tensor& parameter);

  // Whether hooks that still exist take this parameter's gradients.
  static bool is_watched(const at::Tensor& parameter);

 private:
  struct OnArrival;

  Arrived arrived_;
  bool shows_undefined_;
  std::vector<at::Tensor> watched_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> hidden_;  // what stands for a gradient that was taken
  std::vector<std::shared_ptr<void>> accumulators_;                // autograd's nodes
};

}  // namespace tessera::zero

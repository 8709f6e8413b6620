// Autograd's hooks on parameters: each gradient is handed over as it arrives, and hidden from then on, so that nobody
// else takes it for one that is theirs to apply.
//
// A product that makes a weight's gradient may write it where it goes (kernels/gradient_place.h); autograd's gradient
// then never comes.
//
// A parameter is watched while it is unsharded, because its gradient accumulator, which is kept, records the shape.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/kernels/gradient_place.h"

namespace tessera::zero {

class GradientHooks {
 public:
  // Called with a parameter's numbers from autograd's backward.
  using Arrived = std::function<void(size_t unit, size_t param, const at::Tensor& parameter)>;
  struct Places {  // as kernels::GradientTaker's; nothing: there are none
    std::function<kernels::GradientTaker::Place(size_t unit, size_t param)> place;
    std::function<void(size_t unit, size_t param)> taken;
  };

  // `shows_undefined`: a taken gradient is undefined, as in DeepSpeed; else a tensor that throws when it is read
  // (unreadable.h).
  GradientHooks(Arrived arrived, bool shows_undefined, Places places = {})
      : arrived_(std::move(arrived)), places_(std::move(places)), shows_undefined_(shows_undefined) {}
  ~GradientHooks();  // takes the hooks away
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  void watch(const at::Tensor& parameter, const std::string& name, size_t unit, size_t param);

  // The gradient was taken.
  void hide(const at::Tensor& parameter);

  // Whether hooks that still exist take this parameter's gradients.
  static bool is_watched(const at::Tensor& parameter);

 private:
  struct OnArrival;

  // Autograd calls the hook of a parameter also where it brings no gradient, because a product wrote it to its place.
  bool is_hidden(const at::Tensor& parameter) const;

  Arrived arrived_;
  Places places_;
  bool shows_undefined_;
  std::vector<at::Tensor> watched_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> hidden_;  // what stands for a gradient that was taken
  std::vector<std::shared_ptr<void>> accumulators_;                // autograd's nodes
};

}  // namespace tessera::zero

#include "tessera/kernels/gradient_place.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

namespace tessera::kernels {

GradientTaker* GradientTaker::of(const at::Tensor& parameter) {
  if (!parameter.is_leaf() || !parameter.requires_grad()) return nullptr;
  return dynamic_cast<GradientTaker*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

bool write_weight_gradient(const at::Tensor& weight, bool transposed, const at::Tensor& left, const at::Tensor& right) {
  if (at::GradMode::is_enabled() || weight.scalar_type() != at::kFloat) return false;
  GradientTaker* const taker = GradientTaker::of(weight);
  if (taker == nullptr || left.scalar_type() != at::kFloat || right.scalar_type() != at::kFloat) return false;
  const GradientTaker::Place place = taker->place();
  if (!place.values.defined() || place.values.scalar_type() != at::kFloat) return false;
  if (place.values.device() != left.device()) return false;
  const at::Tensor &first = transposed ? right : left, &second = transposed ? left : right;
  place.values.view({first.size(1), second.size(1)}).addmm_(first.t(), second, /*beta=*/place.adds ? 1 : 0);
  taker->taken();
  return true;
}

}  // namespace tessera::kernels

#include "tessera/kernels/gradient_place.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace tessera::kernels {
namespace {

// That autograd runs before it adds a gradient. Those of C++ are one hook that has a list.
int64_t count_of_hooks_before(const at::Tensor& parameter) {
  const auto* const autograd = torch::autograd::impl::get_autograd_meta(parameter);
  if (autograd == nullptr) return 0;
  const auto all = static_cast<int64_t>(autograd->hooks_.size());
  const auto& of_cpp = autograd->cpp_hooks_list_;
  if (of_cpp == nullptr) return all;
  return all - 1 + std::count_if(of_cpp->begin(), of_cpp->end(), [](const auto& each) { return each != nullptr; });
}

}  // namespace

GradientTaker* GradientTaker::of(const at::Tensor& parameter) {
  if (!parameter.is_leaf() || !parameter.requires_grad()) return nullptr;
  auto* const taker = dynamic_cast<GradientTaker*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
  return taker != nullptr && count_of_hooks_before(parameter) == taker->hooks_before() ? taker : nullptr;
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

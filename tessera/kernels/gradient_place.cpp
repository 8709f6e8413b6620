#include "tessera/kernels/gradient_place.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace tessera::kernels {
namespace {

// That autograd runs before it adds a gradient. Those of C++ are one hook that has a list.
int64_t hooks_before(const at::Tensor& parameter) {
  int64_t count = 0;
  for (const auto& hook : torch::autograd::impl::hooks(parameter)) {
    const auto* const of_cpp = dynamic_cast<const torch::autograd::CppFunctionTensorPreHook*>(hook.get());
    count += of_cpp == nullptr ? 1
                               : std::count_if(of_cpp->hooks_->begin(), of_cpp->hooks_->end(),
                                               [](const auto& each) { return each != nullptr; });
  }
  return count;
}

}  // namespace

GradientTaker* GradientTaker::of(const at::Tensor& parameter) {
  if (!parameter.is_leaf() || !parameter.requires_grad()) return nullptr;
  auto* const taker = dynamic_cast<GradientTaker*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
  return taker != nullptr && hooks_before(parameter) == taker->hooks_before() ? taker : nullptr;
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

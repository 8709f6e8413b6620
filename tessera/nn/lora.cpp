#include "tessera/nn/lora.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cmath>

#include "tessera/nn/layers.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::nn {
namespace {

constexpr int64_t kNormedAtOnce = 4 << 20;  // elements; 16 MiB

}  // namespace

double LoraOptions::scale() const {
  const auto size = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(size) : size);
}

LoraBranch::LoraBranch(torch::nn::Module& layer, std::shared_ptr<Linear> a, std::shared_ptr<Linear> b,
                       const LoraOptions& options)
    : a_(layer.register_module("lora_A", std::move(a))),
      b_(layer.register_module("lora_B", std::move(b))),
      scale_(options.scale()),
      dropout_(options.dropout) {
  if (!options.dora) return;
  magnitude_ = layer.register_parameter(kLoraMagnitude, declared_parameter({b_->weight.size(0)}));
}

at::Tensor LoraBranch::forward(const at::Tensor& input, const at::Tensor& alone, const AdaptedLayer& layer) const {
  if (!is_enabled_) return alone;
  const bool drops = dropout_ > 0 && layer.training;
  const at::Tensor dropped = drops ? dropped_input(input, layer) : input;
  const at::Tensor added = b_->forward(a_->forward(dropped)) * scale_;
  if (!magnitude_.defined()) return alone + added;
  const at::Tensor magnitude = layer.sharers != nullptr ? layer.sharers->shared_parameter(magnitude_) : magnitude_;
  const at::Tensor factors = magnitude / norms_of(layer, input.scalar_type());
  if (drops) {
    const at::Tensor base = layer.product(dropped);
    return alone + ((base + added) * factors - base);
  }
  if (!layer.bias.defined()) return (alone + added) * factors;
  return (alone - layer.bias + added) * factors + layer.bias;
}

at::Tensor LoraBranch::dropped_input(const at::Tensor& input, const AdaptedLayer& layer) const {
  if (layer.over_inputs == nullptr) return at::dropout(input, dropout_, /*train=*/true);
  const PartRandomness own(*layer.over_inputs, /*on=*/true, input.device());
  return at::dropout(input, dropout_, /*train=*/true);
}

// In the weight's dtype, as PEFT has it: a new magnitude, which has it too, then divides to 1.
at::Tensor LoraBranch::norms_of(const AdaptedLayer& layer, at::ScalarType dtype) const {
  const bool may_keep = !layer.training && !at::GradMode::is_enabled();
  if (may_keep && norms_.defined()) return norms_;
  const at::Tensor weight = layer.dequantized ? layer.dequantized(dtype) : layer.weight;
  at::Tensor norms = adapted_row_norms(weight, a_->weight, b_->weight, scale_);
  if (layer.over_inputs != nullptr) norms = layer.over_inputs->of_all(norms.square()).sum(0).sqrt();
  norms = norms.to(weight.scalar_type());
  if (may_keep) norms_ = norms;
  return norms;
}

at::Tensor adapted_row_norms(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, double scale) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard in_fp32(c10::autocast_dispatch_keyset);
  const int64_t rows = weight.size(0), at_once = std::max<int64_t>(1, kNormedAtOnce / weight.size(1));
  const at::Tensor wide_a = a.to(at::kFloat);
  at::Tensor norms = at::empty({rows}, weight.options().dtype(at::kFloat).requires_grad(false));
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min(at_once, rows - first);
    const auto some = [&](const at::Tensor& of) { return of.narrow(0, first, count).to(at::kFloat); };
    const at::Tensor sum = at::addmm(some(weight), some(b), wide_a, /*beta=*/1, /*alpha=*/scale);
    norms.narrow(0, first, count).copy_(at::linalg_vector_norm(sum, 2, at::IntArrayRef{1}));
  }
  return norms;
}

}  // namespace tessera::nn

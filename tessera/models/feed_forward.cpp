#include "tessera/models/feed_forward.h"

#include <ATen/ops/sigmoid.h>
#include <fmt/format.h>

#include <utility>

#include "tessera/nn/activations.h"
#include "tessera/nn/expert_dispatch.h"
#include "tessera/nn/module_path.h"

namespace tessera::models {
namespace {

at::Tensor tokens_of(const at::Tensor& x) { return x.reshape({x.numel() / x.size(-1), x.size(-1)}); }

}  // namespace

GatedFeedForward::GatedFeedForward(torch::nn::Module& layer, const std::string& path, const GatedNames& names,
                                   const BlockCut& cut, int64_t hidden, bool bias)
    : cut_(cut) {
  const auto at = [&](const char* name) { return path.empty() ? name : path + "." + name; };
  gate_ = nn::add(layer, at(names.gate), cut.inner(hidden, bias));
  up_ = nn::add(layer, at(names.up), cut.inner(hidden, bias));
  down_ = nn::add(layer, at(names.down), cut.outer(hidden, bias));
}

at::Tensor GatedFeedForward::operator()(const at::Tensor& x) const {
  const at::Tensor entering = cut_.feed_forward().into_parts(x);
  return down_->forward(nn::silu_times(gate_->forward(entering), up_->forward(entering)));
}

ExpertMixture::ExpertMixture(torch::nn::Module& layer, const MixtureNames& names, const nn::RouterOptions& options,
                             const BlockCut& of_expert, const BlockCut* of_shared, int64_t hidden)
    : experts_path_(names.experts),
      router_(nn::add(layer, names.router, std::make_shared<nn::Router>(hidden, options))) {
  for (int64_t expert = 0; expert < options.experts; ++expert) {
    experts_.emplace_back(layer, fmt::format("{}.{}", names.experts, expert), names.of_expert, of_expert, hidden);
  }
  if (of_shared == nullptr) return;
  shared_ = std::make_unique<GatedFeedForward>(layer, names.shared, names.of_expert, *of_shared, hidden);
  shared_gate_ = nn::add(layer, names.shared_gate, std::make_shared<nn::Linear>(hidden, 1, /*with_bias=*/false));
}

nn::Routing ExpertMixture::routed(const at::Tensor& x) const { return router_->forward(tokens_of(x)); }

ExpertMixture::WithSums ExpertMixture::with_sums(const at::Tensor& x, const at::Tensor& counted) const {
  const nn::Routing routing = routed(x);
  const at::Tensor flat = counted.defined() ? counted.reshape({counted.numel()}) : at::Tensor();
  return {mixed(x, routing), nn::router_sums(routing, flat)};
}

at::Tensor ExpertMixture::mixed(const at::Tensor& x, const nn::Routing& routing) const {
  const at::Tensor of_experts = nn::through_experts(
      tokens_of(x), routing, router_->options().experts, axis_,
      [this](int64_t expert, const at::Tensor& rows) { return experts_[static_cast<size_t>(expert)](rows); });
  const at::Tensor result = of_experts.view(x.sizes());
  return shared_ ? result + at::sigmoid(shared_gate_->forward(x)) * (*shared_)(x) : result;
}

double ExpertMixture::share_of_token() const {
  const nn::RouterOptions& options = router_->options();
  return static_cast<double>(options.per_token) / static_cast<double>(options.experts);
}

void ExpertMixture::share(const nn::ExpertAxis& axis, torch::nn::Module& layer) {
  const int64_t all = router_->options().experts;
  const layout::Range own = axis.own(all);
  for (int64_t expert = 0; expert < all; ++expert) {
    if (own.begin <= expert && expert < own.end) continue;
    const auto [parent, name] = nn::parent_of(layer, fmt::format("{}.{}", experts_path_, expert));
    parent->unregister_module(name);
  }
  const auto at = [this](int64_t place) { return experts_.begin() + static_cast<std::ptrdiff_t>(place); };
  experts_ = std::vector<GatedFeedForward>(at(own.begin), at(own.end));
  axis_ = axis;
}

}  // namespace tessera::models

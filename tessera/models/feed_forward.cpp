#include "tessera/models/feed_forward.h"

#include <ATen/ops/sigmoid.h>
#include <fmt/format.h>

#include <utility>

#include "tessera/nn/activations.h"
#include "tessera/nn/expert_dispatch.h"
#include "tessera/nn/module_path.h"

namespace tessera::models {
namespace {

GatedMatrices expert(torch::nn::Module& layer, const std::string& path, const GatedNames& names, const BlockCut& cut,
                     int64_t hidden) {
  const auto add = [&](const char* name, const BlockCut::Layer& linear) {
    return nn::add(layer, path + "." + name, linear);
  };
  return {.gate = add(names.gate, cut.inner(hidden, /*bias=*/false)),
          .up = add(names.up, cut.inner(hidden, /*bias=*/false)),
          .down = add(names.down, cut.outer_of_expert(hidden))};
}

}  // namespace

at::Tensor GatedMatrices::operator()(const at::Tensor& x) const {
  return down->forward(nn::silu_times(gate->forward(x), up->forward(x)));
}

GatedFeedForward::GatedFeedForward(torch::nn::Module& layer, const GatedNames& names, const BlockCut& cut,
                                   int64_t hidden, bool bias)
    : cut_(cut),
      matrices_{.gate = nn::add(layer, names.gate, cut.inner(hidden, bias)),
                .up = nn::add(layer, names.up, cut.inner(hidden, bias)),
                .down = nn::add(layer, names.down, cut.outer(hidden, bias))} {}

at::Tensor GatedFeedForward::operator()(const at::Tensor& x, const nn::TokenShape& tokens) const {
  return matrices_(nn::into_cut_layers(cut_.feed_forward(), x, tokens));
}

ExpertMixture::ExpertMixture(torch::nn::Module& layer, const MixtureNames& names, const nn::RouterOptions& options,
                             const BlockCut& of_expert, const BlockCut* of_shared, int64_t hidden)
    : tensor_axis_(of_expert.feed_forward()),
      experts_path_(names.experts),
      router_(nn::add(layer, names.router, std::make_shared<nn::Router>(hidden, options, tensor_axis_))) {
  for (int64_t number = 0; number < options.experts; ++number) {
    experts_.push_back(expert(layer, fmt::format("{}.{}", names.experts, number), names.of_expert, of_expert, hidden));
  }
  if (of_shared == nullptr) return;
  shared_ = expert(layer, names.shared, names.of_expert, *of_shared, hidden);
  shared_gate_ =
      nn::add(layer, names.shared_gate,
              std::make_shared<nn::Linear>(hidden, 1, /*with_bias=*/false, nn::LinearCut{.axis = tensor_axis_}));
}

nn::Routing ExpertMixture::routed(const at::Tensor& all) const { return router_->forward(all.flatten(0, -2)); }

at::Tensor ExpertMixture::operator()(const at::Tensor& x, const nn::TokenShape& tokens) const {
  const at::Tensor all = nn::into_cut_layers(tensor_axis_, x, tokens);
  return mixed(all, routed(all));
}

ExpertMixture::WithSums ExpertMixture::with_sums(const at::Tensor& x, const nn::TokenShape& tokens,
                                                 const at::Tensor& counted) const {
  const at::Tensor all = nn::into_cut_layers(tensor_axis_, x, tokens);
  const nn::Routing routing = routed(all);
  const at::Tensor flat = counted.defined() ? counted.reshape({counted.numel()}) : at::Tensor();
  return {mixed(all, routing), tensor_axis_.counted_once(nn::router_sums(routing, flat))};
}

at::Tensor ExpertMixture::mixed(const at::Tensor& all, const nn::Routing& routing) const {
  const at::Tensor of_experts = nn::through_experts(
      all.flatten(0, -2), routing, router_->options().experts, axis_,
      [this](int64_t expert, const at::Tensor& rows) { return experts_[static_cast<size_t>(expert)](rows); });
  const at::Tensor result = of_experts.view(all.sizes());
  return nn::out_of_cut_layers(tensor_axis_,
                               shared_ ? result + at::sigmoid(shared_gate_->forward(all)) * (*shared_)(all) : result);
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
  experts_ = std::vector<GatedMatrices>(at(own.begin), at(own.end));
  axis_ = axis;
}

}  // namespace tessera::models

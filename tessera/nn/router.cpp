#include "tessera/nn/router.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::nn {

Routing route(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias) {
  TESSERA_INVARIANT(logits.size(-1) == options.experts && options.per_token <= options.experts);
  const at::Tensor in_fp32 = logits.to(at::kFloat);
  const at::Tensor scores =
      options.scores == RouterOptions::Scores::kSoftmax ? at::softmax(in_fp32, -1) : at::sigmoid(in_fp32);
  Routing routing{.logits = logits};
  if (bias.defined()) {
    routing.experts = std::get<1>(at::topk(scores.detach() + bias, options.per_token, -1));
    routing.weights = scores.gather(-1, routing.experts);
  } else {
    std::tie(routing.weights, routing.experts) = at::topk(scores, options.per_token, -1);
  }
  if (options.sums_to_one) routing.weights = routing.weights / routing.weights.sum(-1, /*keepdim=*/true);
  if (options.scale != 1) routing.weights = routing.weights * options.scale;
  return routing;
}

at::Tensor router_sums(const Routing& routing, const at::Tensor& counted) {
  const at::Tensor logits = routing.logits.to(at::kFloat);
  const int64_t experts = logits.size(1);
  const at::Tensor weights = counted.defined() ? counted.to(at::kFloat) : at::ones({logits.size(0)}, logits.options());
  const at::Tensor of_choices = weights.unsqueeze(1).expand(routing.experts.sizes());
  const at::Tensor chosen = at::zeros({experts}, logits.options())
                                .index_add_(0, routing.experts.reshape({routing.experts.numel()}),
                                            of_choices.reshape({routing.experts.numel()}));
  const at::Tensor probabilities = (at::softmax(logits, -1) * weights.unsqueeze(1)).sum(0);
  const at::Tensor squares = (at::logsumexp(logits, -1).square() * weights).sum().unsqueeze(0);
  return at::cat({chosen, probabilities, squares});
}

at::Tensor router_loss(const at::Tensor& own, const at::Tensor& all, double rows, const RouterLosses& losses) {
  const int64_t experts = (own.size(0) - 1) / 2;
  const at::Tensor often = all.narrow(0, 0, experts).detach() / rows;
  const at::Tensor probability = own.narrow(0, experts, experts) / rows;
  const at::Tensor balance = (often * probability).sum() * (losses.balance * static_cast<double>(experts));
  return losses.z == 0 ? balance : balance + own[2 * experts] * (losses.z / rows);
}

Router::Router(int64_t width, const RouterOptions& options, const TensorAxis& axis)
    : weight(register_parameter("weight", declared_parameter({options.experts, width}))),
      options_(options),
      axis_(std::make_shared<const TensorAxis>(axis)) {}

Routing Router::forward(const at::Tensor& tokens) const {
  return route(linear(tokens, axis_->shared_parameter(weight), /*bias=*/at::Tensor()), options_);
}

}  // namespace tessera::nn

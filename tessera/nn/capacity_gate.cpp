#include "tessera/nn/capacity_gate.h"

#include <ATen/ops/argmax.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

int64_t capacity_of(const at::Tensor& gates, const CapacityOptions& options) {
  const double tokens_of_each = static_cast<double>(gates.size(0)) / static_cast<double>(gates.size(1));
  const double factor = options.factor * static_cast<double>(options.per_token);
  return std::max(options.least,  // in fp32, as programs that count on a capacity have it
                  static_cast<int64_t>(std::ceil(static_cast<float>(tokens_of_each) * static_cast<float>(factor))));
}

// -log(-log(u)) of u from the smallest normal number up to 1 - eps.
at::Tensor gumbel_like(const at::Tensor& logits) {
  constexpr float kLow = std::numeric_limits<float>::min(), kHigh = 1 - std::numeric_limits<float>::epsilon();
  const at::Tensor uniform = at::rand(logits.sizes(), logits.options().requires_grad(false)) * (kHigh - kLow) + kLow;
  return uniform.log().neg().log().neg();
}

// How many chosen tokens of each expert stand before each token. mask (tokens, experts) int64.
at::Tensor places_in(const at::Tensor& mask) { return mask.cumsum(0) - 1; }

// The `count` largest of each column, as a mask.
at::Tensor largest_of_columns(const at::Tensor& values, int64_t count) {
  const at::Tensor rows = std::get<1>(at::topk(values, std::min(count, values.size(0)), 0));
  return at::zeros_like(values, values.options().dtype(at::kLong).requires_grad(false)).scatter_(0, rows, 1);
}

at::Tensor balance_loss_of(const at::Tensor& gates, const at::Tensor& mask, int64_t choices) {
  const auto experts = static_cast<double>(gates.size(1));
  return (gates.mean(0) * mask.to(at::kFloat).mean(0)).sum() * (experts / static_cast<double>(choices));
}

// chosen (tokens, choices): where `mask` is 0 it is the number of experts. Weights are those of `gates`.
Routing routing_of(const at::Tensor& gates, const at::Tensor& mask, const at::Tensor& chosen, bool sums_to_one,
                   const at::Tensor& logits) {
  const at::Tensor kept = mask.gather(1, chosen);
  at::Tensor left = gates * mask;
  if (sums_to_one) left = left / left.sum(1, /*keepdim=*/true).clamp_min(std::numeric_limits<float>::epsilon());
  return {.experts = at::where(kept.ne(0), chosen, at::full_like(chosen, gates.size(1))),
          .weights = left.gather(1, chosen),
          .logits = logits};
}

CapacityRouting route_to_one(const at::Tensor& logits, const CapacityOptions& options, const at::Tensor& used) {
  const at::Tensor noisy = options.noise ? logits.detach() + gumbel_like(logits) : at::Tensor();
  const at::Tensor gates = at::softmax(logits, 1);
  const at::Tensor chosen = at::argmax(noisy.defined() ? noisy : gates, 1);
  at::Tensor mask = at::one_hot(chosen, gates.size(1));
  if (used.defined()) mask = mask * used.ne(0).to(at::kLong).unsqueeze(1);
  CapacityRouting found{.balance_loss = balance_loss_of(gates, mask, 1), .counts = mask.sum(0)};
  if (gates.size(0) < options.least) {
    throw Error(ErrorKind::kUsage,
                {fmt::format("{} tokens are fewer than an expert takes at least, {}", gates.size(0), options.least),
                 "a layer with experts", "set min_capacity to 0, or give it more tokens at once"});
  }
  if (options.in_order) {
    if (options.drops) mask = mask * places_in(mask).lt(capacity_of(gates, options)).to(at::kLong);
  } else {  // numbers are drawn though nothing is dropped, so that what is drawn later does not depend on it
    const at::Tensor precedence = mask * at::rand(mask.sizes(), gates.options().requires_grad(false));
    if (options.drops) mask = mask * largest_of_columns(precedence, capacity_of(gates, options));
  }
  found.routing = routing_of(gates, mask, chosen.unsqueeze(1), /*sums_to_one=*/false, logits);
  return found;
}

CapacityRouting route_to_two(const at::Tensor& logits, const CapacityOptions& options) {
  const at::Tensor gates = at::softmax(logits, 1);
  const int64_t experts = gates.size(1);
  const at::Tensor first = at::argmax(gates, 1);
  at::Tensor mask_of_first = at::one_hot(first, experts);
  at::Tensor others = logits.detach();
  if (options.noise) others = others + gumbel_like(logits);
  others = others.masked_fill(mask_of_first.to(at::kBool), -std::numeric_limits<float>::infinity());
  const at::Tensor second = at::argmax(others, 1);
  at::Tensor mask_of_second = at::one_hot(second, experts);
  CapacityRouting found{.balance_loss = balance_loss_of(gates, mask_of_first, 1),
                        .counts = (mask_of_first + mask_of_second).sum(0)};
  if (options.drops) {
    const int64_t capacity = capacity_of(gates, options);
    const at::Tensor places = places_in(mask_of_second) + mask_of_first.sum(0, /*keepdim=*/true);
    mask_of_first = mask_of_first * places_in(mask_of_first).lt(capacity).to(at::kLong);
    mask_of_second = mask_of_second * places.lt(capacity).to(at::kLong);
  }
  found.routing =
      routing_of(gates, mask_of_first + mask_of_second, at::stack({first, second}, 1), /*sums_to_one=*/true, logits);
  return found;
}

CapacityRouting route_to_several(const at::Tensor& logits, const CapacityOptions& options) {
  const at::Tensor gates = at::softmax(logits, 1);
  const auto [probabilities, chosen] = at::topk(gates, options.per_token, 1);
  at::Tensor mask = at::zeros_like(gates, gates.options().dtype(at::kLong).requires_grad(false)).scatter_(1, chosen, 1);
  CapacityRouting found{.balance_loss = balance_loss_of(gates, mask, options.per_token), .counts = mask.sum(0)};
  if (options.drops) mask = mask * largest_of_columns((gates * mask).detach(), capacity_of(gates, options));
  found.routing = routing_of(gates, mask, chosen, /*sums_to_one=*/true, logits);
  return found;
}

}  // namespace

CapacityRouting route_by_capacity(const at::Tensor& logits, const CapacityOptions& options, const at::Tensor& used) {
  TESSERA_INVARIANT(options.per_token >= 1 && options.per_token <= logits.size(1));
  const at::Tensor in_fp32 = logits.to(at::kFloat);
  if (options.per_token == 1) return route_to_one(in_fp32, options, used);
  if (options.per_token == 2) return route_to_two(in_fp32, options);
  return route_to_several(in_fp32, options);
}

}  // namespace tessera::nn

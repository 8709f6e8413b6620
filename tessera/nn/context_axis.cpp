#include "tessera/nn/context_axis.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "tessera/comm/group.h"
#include "tessera/layout/consecutive_parts.h"
#include "tessera/nn/kept_value.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::nn {
namespace {

using Ranges = std::vector<layout::Range>;

// Sends each rank its part along `dim`, and receives `sizes` from each.
std::vector<at::Tensor> all_to_all(const HeadExchange& exchange, const at::Tensor& from, int dim, const Ranges& parts,
                                   const std::vector<std::vector<int64_t>>& sizes) {
  std::vector<at::Tensor> outgoing, incoming, received;
  for (size_t rank = 0; rank < exchange.tokens.size(); ++rank) {
    outgoing.push_back(from.narrow(dim, parts[rank].begin, parts[rank].numel()).contiguous().view({-1}));
    received.push_back(at::empty(sizes[rank], from.options().requires_grad(false)));
    incoming.push_back(received.back().view({-1}));
  }
  exchange.group->start_all_to_all(incoming, outgoing, "tokens for heads").finish();
  return received;
}

// (batch, own tokens, heads, size) -> (batch, length, own heads, size)
at::Tensor to_heads(const HeadExchange& exchange, const at::Tensor& x) {
  std::vector<std::vector<int64_t>> sizes;
  for (const layout::Range& tokens : exchange.tokens) {
    sizes.push_back({x.size(0), tokens.numel(), exchange.own(exchange.heads).numel(), x.size(3)});
  }
  return at::cat(all_to_all(exchange, x, 2, exchange.heads, sizes), 1);
}

// The inverse; heads that several ranks have are added up.
at::Tensor to_tokens(const HeadExchange& exchange, const at::Tensor& x) {
  std::vector<std::vector<int64_t>> sizes;
  int64_t heads = 0;
  for (const layout::Range& of_rank : exchange.heads) {
    sizes.push_back({x.size(0), exchange.own(exchange.tokens).numel(), of_rank.numel(), x.size(3)});
    heads = of_rank.end;
  }
  const std::vector<at::Tensor> parts = all_to_all(exchange, x, 1, exchange.tokens, sizes);
  at::Tensor all = at::zeros({x.size(0), sizes[0][1], heads, x.size(3)}, x.options().requires_grad(false));
  for (size_t rank = 0; rank < exchange.tokens.size(); ++rank) {
    all.narrow(2, exchange.heads[rank].begin, exchange.heads[rank].numel()).add_(parts[rank]);
  }
  return all;
}

// One of the two, whose backward is the other.
template <auto kThere, auto kBack>
class Exchanged : public torch::autograd::Function<Exchanged<kThere, kBack>> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const HeadExchange& exchange) {
    context->saved_data["exchange"] = keep(exchange);
    return kThere(exchange, x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::NoGradGuard no_grad;
    return {kBack(kept<HeadExchange>(context->saved_data["exchange"]), grads[0]), {}};
  }
};
using ToHeads = Exchanged<to_heads, to_tokens>;
using ToTokens = Exchanged<to_tokens, to_heads>;

TensorAxis::Heads heads_over(int ranks, int64_t heads, int64_t key_heads) {
  return TensorAxis::of_size(ranks).asked_by("parallel.context").cut_heads(heads, key_heads);
}

}  // namespace

// A channel of its own, as the tensor axis has.
ContextAxis::ContextAxis(const std::shared_ptr<comm::Group>& group)
    : size_(group->size()), group_(size_ > 1 ? group->with_channel("context") : nullptr) {}

ContextAxis ContextAxis::of_size(int size) {
  ContextAxis axis;
  axis.size_ = size;
  return axis;
}

int ContextAxis::rank() const { return group_ ? group_->rank() : 0; }

void ContextAxis::check_heads(int64_t heads, int64_t key_heads, int tensor_ranks, int context_ranks) {
  if (context_ranks == 1) return;
  const TensorAxis::Heads cut = TensorAxis::of_size(tensor_ranks).cut_heads(heads, key_heads);
  for (size_t rank = 0; rank < cut.query.parts.size(); ++rank) {
    heads_over(context_ranks, cut.query.parts[rank].numel(), cut.key.parts[rank].numel());
  }
}

const layout::Range& HeadExchange::own(const Ranges& of_ranks) const {
  return of_ranks[static_cast<size_t>(group->rank())];
}

at::Tensor HeadExchange::to_heads(const at::Tensor& x) const { return ToHeads::apply(x, *this); }
at::Tensor HeadExchange::to_tokens(const at::Tensor& x) const { return ToTokens::apply(x, *this); }

HeadExchanges exchanges_of(const ContextAxis& axis, const Ranges& tokens, int64_t heads, int64_t key_heads) {
  const TensorAxis::Heads cut = heads_over(axis.size(), heads, key_heads);
  return {.queries = {axis.group(), tokens, cut.query.parts}, .keys = {axis.group(), tokens, cut.key.parts}};
}

SharedRows::SharedRows(const ContextAxis& axis, int64_t length) : axis_(axis) {
  const std::vector<int64_t> bounds = layout::uniform_bounds(length, axis.size());
  for (size_t rank = 0; rank + 1 < bounds.size(); ++rank) tokens_.push_back({bounds[rank], bounds[rank + 1]});
}

at::Tensor SharedRows::own(const at::Tensor& rows) const {
  const layout::Range& own = tokens_[static_cast<size_t>(axis_.rank())];
  return rows.narrow(1, own.begin, own.numel());
}

at::Tensor SharedRows::attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const Attention& attention) const {
  if (axis_.size() == 1) return attention(query, key, value);
  const HeadExchanges by = exchanges_of(axis_, tokens_, query.size(2), key.size(2));
  const at::Tensor context = attention(by.queries.to_heads(query), by.keys.to_heads(key), by.keys.to_heads(value));
  const at::Tensor of_heads = context.view({context.size(0), context.size(1), -1, value.size(3)});
  return by.queries.to_tokens(of_heads).flatten(2);
}

}  // namespace tessera::nn

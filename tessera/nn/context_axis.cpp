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

// Who has which tokens of a row while layers run, and which heads while attention does.
struct Exchange {
  std::shared_ptr<comm::Group> group;
  Ranges tokens;
  Ranges heads;  // may overlap

  size_t ranks() const { return tokens.size(); }
  const layout::Range& own(const Ranges& of_ranks) const { return of_ranks[static_cast<size_t>(group->rank())]; }
};

// Sends each rank its part along `dim`, and receives `sizes` from each.
std::vector<at::Tensor> all_to_all(const Exchange& exchange, const at::Tensor& from, int dim, const Ranges& parts,
                                   const std::vector<std::vector<int64_t>>& sizes) {
  std::vector<at::Tensor> outgoing, incoming, received;
  for (size_t rank = 0; rank < exchange.ranks(); ++rank) {
    outgoing.push_back(from.narrow(dim, parts[rank].begin, parts[rank].numel()).contiguous().view({-1}));
    received.push_back(at::empty(sizes[rank], from.options().requires_grad(false)));
    incoming.push_back(received.back().view({-1}));
  }
  exchange.group->start_all_to_all(incoming, outgoing, "tokens for heads").finish();
  return received;
}

// (batch, own tokens, heads, size) -> (batch, length, own heads, size)
at::Tensor to_heads(const Exchange& exchange, const at::Tensor& x) {
  std::vector<std::vector<int64_t>> sizes;
  for (const layout::Range& tokens : exchange.tokens) {
    sizes.push_back({x.size(0), tokens.numel(), exchange.own(exchange.heads).numel(), x.size(3)});
  }
  return at::cat(all_to_all(exchange, x, 2, exchange.heads, sizes), 1);
}

// The inverse; heads that several ranks have are added up.
at::Tensor to_tokens(const Exchange& exchange, const at::Tensor& x) {
  std::vector<std::vector<int64_t>> sizes;
  int64_t heads = 0;
  for (const layout::Range& of_rank : exchange.heads) {
    sizes.push_back({x.size(0), exchange.own(exchange.tokens).numel(), of_rank.numel(), x.size(3)});
    heads = of_rank.end;
  }
  const std::vector<at::Tensor> parts = all_to_all(exchange, x, 1, exchange.tokens, sizes);
  at::Tensor all = at::zeros({x.size(0), sizes[0][1], heads, x.size(3)}, x.options().requires_grad(false));
  for (size_t rank = 0; rank < exchange.ranks(); ++rank) {
    all.narrow(2, exchange.heads[rank].begin, exchange.heads[rank].numel()).add_(parts[rank]);
  }
  return all;
}

class ToHeads : public torch::autograd::Function<ToHeads> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Exchange& exchange) {
    context->saved_data["exchange"] = keep(exchange);
    return to_heads(exchange, x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::NoGradGuard no_grad;
    return {to_tokens(kept<Exchange>(context->saved_data["exchange"]), grads[0]), {}};
  }
};

class ToTokens : public torch::autograd::Function<ToTokens> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Exchange& exchange) {
    context->saved_data["exchange"] = keep(exchange);
    return to_tokens(exchange, x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::NoGradGuard no_grad;
    return {to_heads(kept<Exchange>(context->saved_data["exchange"]), grads[0]), {}};
  }
};

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

SharedRows::SharedRows(const ContextAxis& axis, int64_t length) : group_(axis.group()) {
  const std::vector<int64_t> bounds = layout::uniform_bounds(length, axis.size());
  for (size_t rank = 0; rank + 1 < bounds.size(); ++rank) tokens_.push_back({bounds[rank], bounds[rank + 1]});
}

at::Tensor SharedRows::own(const at::Tensor& rows) const {
  const layout::Range& own = tokens_[group_ ? static_cast<size_t>(group_->rank()) : 0];
  return rows.narrow(1, own.begin, own.numel());
}

at::Tensor SharedRows::attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const Attention& attention) const {
  if (!group_) return attention(query, key, value);
  const int64_t head_size = value.size(3);
  const TensorAxis::Heads heads = heads_over(group_->size(), query.size(2), key.size(2));
  const Exchange of_queries{group_, tokens_, heads.query.parts}, of_keys{group_, tokens_, heads.key.parts};
  const at::Tensor context =
      attention(ToHeads::apply(query, of_queries), ToHeads::apply(key, of_keys), ToHeads::apply(value, of_keys));
  const at::Tensor by_heads = context.view({context.size(0), context.size(1), -1, head_size});
  return ToTokens::apply(by_heads, of_queries).flatten(2);
}

}  // namespace tessera::nn

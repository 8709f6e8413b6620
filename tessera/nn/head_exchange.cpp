#include "tessera/nn/head_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/comm/group.h"
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
  exchange.group->start_all_to_all(incoming, outgoing, "tokens for heads").finish_for(from);
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

}  // namespace

const layout::Range& HeadExchange::own(const Ranges& of_ranks) const {
  return of_ranks[static_cast<size_t>(group->rank())];
}

at::Tensor HeadExchange::to_heads(const at::Tensor& x) const { return ToHeads::apply(x, *this); }
at::Tensor HeadExchange::to_tokens(const at::Tensor& x) const { return ToTokens::apply(x, *this); }

HeadExchanges exchanges_of(const std::shared_ptr<comm::Group>& group, const Ranges& tokens, int64_t heads,
                           int64_t key_heads) {
  const TensorAxis axis = TensorAxis::of_size(group->size()).asked_by("parallel.context");
  const TensorAxis::Heads cut = axis.cut_heads(heads, key_heads);
  return {.queries = {group, tokens, cut.query.parts}, .keys = {group, tokens, cut.key.parts}};
}

}  // namespace tessera::nn

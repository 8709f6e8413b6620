#include "tessera/nn/ring_attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tessera/nn/kept_value.h"

namespace tessera::nn {
namespace {

struct Ring {
  std::shared_ptr<comm::Group> group;
  std::shared_ptr<const RingPieces> pieces;
  std::optional<double> scale;

  int size() const { return group->size(); }
  int next() const { return (group->rank() + 1) % size(); }
  int previous() const { return (group->rank() + size() - 1) % size(); }

  // Whose block is here after so many passes.
  int owner(int passes) const { return (group->rank() + size() - passes % size()) % size(); }
};

// A block on its way to the next rank, and the one of the rank before on its way here.
class Passing {
 public:
  Passing() = default;
  Passing(const Ring& ring, const at::Tensor& here, const at::Tensor& coming, const std::string& what) {
    if (here.numel() > 0) sent_ = ring.group->start_send(here, ring.next(), what);
    if (coming.numel() > 0) received_ = ring.group->start_receive(coming, ring.previous(), what);
  }
  void finish() {
    if (received_.in_flight()) received_.finish();
    if (sent_.in_flight()) sent_.finish();
  }

 private:
  comm::Collective sent_, received_;
};

// (2, batch, tokens, key heads, head size): keys and values, or their gradients.
at::Tensor empty_block(const Ring& ring, int owner, const at::Tensor& like, at::ScalarType dtype) {
  std::vector<int64_t> sizes{2, like.size(0), ring.pieces->tokens_of(owner), like.size(2), like.size(3)};
  return ring.group->empty(c10::multiply_integers(sizes), like.options().dtype(dtype).requires_grad(false)).view(sizes);
}

at::Tensor block_of(const Ring& ring, const at::Tensor& key, const at::Tensor& value) {
  at::Tensor block = empty_block(ring, ring.group->rank(), key, key.scalar_type());
  block[0].copy_(key);
  block[1].copy_(value);
  return block;
}

// Calls visit(passes, block) with every rank's keys and values in turn, while the next are on their way.
template <class F>
void go_round(const Ring& ring, const at::Tensor& key, const at::Tensor& value, F visit) {
  at::Tensor block = block_of(ring, key, value);
  for (int passes = 0; passes < ring.size(); ++passes) {
    at::Tensor coming;
    Passing passing;
    if (passes + 1 < ring.size()) {
      coming = empty_block(ring, ring.owner(passes + 1), key, key.scalar_type());
      passing = Passing(ring, block, coming, "keys and values");
    }
    visit(passes, block);
    passing.finish();
    block = coming;
  }
}

// (batch, tokens, …) -> those of a piece, as the kernel takes them: (rows, …, tokens, …) with the next two exchanged.
at::Tensor part(const at::Tensor& x, std::optional<int64_t> row, const layout::Range& tokens) {
  const at::Tensor rows = row ? x.narrow(0, *row, 1) : x;
  return rows.narrow(1, tokens.begin, tokens.numel()).transpose(1, 2);
}

// What of the softmax is known: its result so far, in fp32, and the logarithm of its sum.
struct Attended {
  at::Tensor context;  // (batch, own tokens, heads, head size)
  at::Tensor log_sum;  // (batch, own tokens, heads)
};

Attended nothing_attended(const at::Tensor& query) {
  const auto options = query.options().dtype(at::kFloat).requires_grad(false);
  return {.context = at::zeros(query.sizes(), options),
          .log_sum = at::full(query.sizes().slice(0, 3), -std::numeric_limits<float>::infinity(), options)};
}

void attend(const Ring& ring, int owner, const at::Tensor& query, const at::Tensor& block, Attended& all) {
  for (const RingPiece& piece : ring.pieces->with_keys_of(owner)) {
    const auto [context, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
        part(query, piece.row, piece.queries), part(block[0], piece.row, piece.keys),
        part(block[1], piece.row, piece.keys), /*dropout_p=*/0, piece.seen == RingPiece::Seen::kCausal,
        ring.pieces->mask(piece), ring.scale);
    at::Tensor before = part(all.log_sum, piece.row, piece.queries);
    const at::Tensor now = at::logaddexp(before, log_sum);
    part(all.context, piece.row, piece.queries)
        .mul_(at::exp(before - now).unsqueeze(3))
        .addcmul_(context.to(at::kFloat), at::exp(log_sum - now).unsqueeze(3));
    before.copy_(now);
  }
}

class RingAttention : public torch::autograd::Function<RingAttention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const Ring& ring) {
    Attended all = nothing_attended(query);
    go_round(ring, key, value,
             [&](int passes, const at::Tensor& block) { attend(ring, ring.owner(passes), query, block, all); });
    const at::Tensor result = all.context.to(query.scalar_type());
    context->saved_data["ring"] = keep(ring);
    context->save_for_backward({query, key, value, result, all.log_sum});
    return result;
  }

  // A block's gradients follow it round, and come home with one pass more.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::NoGradGuard no_grad;
    const Ring ring = kept<Ring>(context->saved_data["ring"]);
    const Backward of{.ring = ring, .saved = context->get_saved_variables(), .grad = grads[0].contiguous()};
    const at::Tensor &query = of.saved[0], &key = of.saved[1], &value = of.saved[2];
    at::Tensor query_grad = at::zeros(query.sizes(), query.options().dtype(at::kFloat).requires_grad(false));
    at::Tensor grad_before;
    Passing passing_grads;
    go_round(ring, key, value, [&](int passes, const at::Tensor& block) {
      at::Tensor block_grad = empty_block(ring, ring.owner(passes), key, at::kFloat).zero_();
      of.add(ring.owner(passes), block, query_grad, block_grad);
      passing_grads.finish();
      if (grad_before.defined()) block_grad.add_(grad_before);
      grad_before = empty_block(ring, ring.owner(passes + 1), key, at::kFloat);
      passing_grads = Passing(ring, block_grad, grad_before, "gradients of keys and values");
    });
    passing_grads.finish();
    return {query_grad.to(query.scalar_type()),
            grad_before[0].to(key.scalar_type()),
            grad_before[1].to(value.scalar_type()),
            {}};
  }

 private:
  struct Backward {
    const Ring& ring;
    torch::autograd::variable_list saved;  // query, key, value, result, log_sum
    at::Tensor grad;                       // of the result

    void add(int owner, const at::Tensor& block, const at::Tensor& query_grad, const at::Tensor& block_grad) const {
      for (const RingPiece& piece : ring.pieces->with_keys_of(owner)) {
        const auto own = [&](const at::Tensor& x) { return part(x, piece.row, piece.queries); };
        const auto theirs = [&](const at::Tensor& x) { return part(x, piece.row, piece.keys); };
        const auto [to_query, to_key, to_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            own(grad), own(saved[0]), theirs(block[0]), theirs(block[1]), own(saved[3]), own(saved[4]),
            /*dropout_p=*/0, piece.seen == RingPiece::Seen::kCausal, ring.pieces->mask(piece), ring.scale);
        own(query_grad).add_(to_query);
        theirs(block_grad[0]).add_(to_key);
        theirs(block_grad[1]).add_(to_value);
      }
    }
  };
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::shared_ptr<comm::Group>& group, const std::shared_ptr<const RingPieces>& pieces,
                          double scale) {
  TESSERA_INVARIANT(query.is_cpu() && key.sizes() == value.sizes());
  const Ring ring{.group = group, .pieces = pieces, .scale = scale == 0 ? std::nullopt : std::optional(scale)};
  return RingAttention::apply(query, key, value, ring);
}

}  // namespace tessera::nn

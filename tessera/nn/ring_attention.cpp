#include "tessera/nn/ring_attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tessera/layout/consecutive_parts.h"
#include "tessera/nn/kept_value.h"

namespace tessera::nn {
namespace {

using layout::Range;

// Which tokens may see each other: of one row, or, where every row is one text, of all rows.
struct Text {
  std::optional<int64_t> row;
  Range tokens;
};

// What one call of the kernel computes. Tokens are counted among those that the rank of the queries, and that of the
// keys, has.
struct Piece {
  std::optional<int64_t> row;  // none: all
  Range queries, keys;
  bool causal = false;  // queries and keys are the same tokens, and each sees those before it
  at::Tensor mask;      // added to query · key; undefined: every query sees every key, unless `causal`
};

struct Ring {
  std::shared_ptr<comm::Group> group;
  TokensOfRanks tokens;
  AttentionPattern pattern;  // without `present` where it changes nothing
  std::optional<double> scale;

  int size() const { return group->size(); }
  int next() const { return (group->rank() + 1) % size(); }
  int previous() const { return (group->rank() + size() - 1) % size(); }

  // Whose block is here after so many passes.
  int owner(int passes) const { return (group->rank() + size() - passes % size()) % size(); }
  int64_t tokens_of(int rank) const {
    int64_t count = 0;
    for (const Range& range : tokens[static_cast<size_t>(rank)]) count += range.numel();
    return count;
  }
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
  std::vector<int64_t> sizes{2, like.size(0), ring.tokens_of(owner), like.size(2), like.size(3)};
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

Range both(const Range& one, const Range& other) {
  const int64_t begin = std::max(one.begin, other.begin);
  return {begin, std::max(begin, std::min(one.end, other.end))};
}

std::vector<Text> texts_of(const Ring& ring, int64_t length) {
  std::vector<Text> texts;
  int64_t at = 0;
  for (const int64_t document : ring.pattern.documents) {
    const int64_t begin = at % length;
    texts.push_back({at / length, {begin, begin + document}});
    at += document;
  }
  if (texts.empty()) texts.push_back({std::nullopt, {0, length}});
  return texts;
}

// Large, but finite, so that a piece of which a query sees nothing weighs nothing beside one of which it sees
// something.
double unseen(at::ScalarType dtype) { return dtype == at::kHalf ? -6e4 : -1e30; }

// (batch or 1, 1, queries, keys) in the queries' dtype.
at::Tensor mask_of(const AttentionPattern& pattern, const Range& queries, const Range& keys, const at::Tensor& like) {
  const auto positions = at::TensorOptions(at::kLong).device(like.device());
  const at::Tensor query = at::arange(queries.begin, queries.end, positions).unsqueeze(1);
  const at::Tensor key = at::arange(keys.begin, keys.end, positions).unsqueeze(0);
  at::Tensor seen = key <= query;
  if (pattern.window > 0) seen = seen.logical_and(key > query - pattern.window);
  seen = seen.unsqueeze(0).unsqueeze(0);
  if (pattern.present.defined()) {
    const at::Tensor present = pattern.present.narrow(1, keys.begin, keys.numel()).unsqueeze(1).unsqueeze(1);
    seen = seen.logical_and(present).logical_or(key == query);  // padding sees itself
  }
  return at::zeros(seen.sizes(), like.options()).masked_fill_(seen.logical_not(), unseen(like.scalar_type()));
}

// Queries at once where a mask is needed: it is no larger than it need be for a window, and of bounded size otherwise.
int64_t queries_at_once(const AttentionPattern& pattern) {
  constexpr int64_t kMasked = 512;
  if (pattern.window > 0) return std::max<int64_t>(pattern.window, kMasked);
  return pattern.present.defined() ? kMasked : std::numeric_limits<int64_t>::max();
}

// Adds what of these queries' work there is with these keys, all being places in a row.
void add_pieces(const Ring& ring, const at::Tensor& like, std::optional<int64_t> row, const Range& all_queries,
                const Range& all_keys, int64_t first_query, int64_t first_key, std::vector<Piece>& pieces) {
  const AttentionPattern& pattern = ring.pattern;
  const int64_t window = pattern.window > 0 ? pattern.window : std::numeric_limits<int64_t>::max() / 2;
  const int64_t step = std::min(queries_at_once(pattern), all_queries.numel());
  for (int64_t begin = all_queries.begin; begin < all_queries.end; begin += step) {
    Range queries{begin, std::min(begin + step, all_queries.end)};
    const Range keys = both(all_keys, {queries.begin - window + 1, queries.end});
    queries = both(queries, {keys.begin, keys.end + window - 1});
    if (keys.numel() == 0 || queries.numel() == 0) continue;
    Piece piece{.row = row,
                .queries = {queries.begin - first_query, queries.end - first_query},
                .keys = {keys.begin - first_key, keys.end - first_key}};
    const bool no_padding = !pattern.present.defined();
    piece.causal = no_padding && queries == keys && queries.numel() <= window;
    const bool sees_all = no_padding && keys.end <= queries.begin + 1 && keys.begin > queries.end - 1 - window;
    if (!piece.causal && !sees_all) piece.mask = mask_of(pattern, queries, keys, like);
    pieces.push_back(std::move(piece));
  }
}

// All between this rank's queries and the keys of the owner of a block.
std::vector<Piece> pieces_with(const Ring& ring, int owner, const at::Tensor& like) {
  int64_t length = 0;
  for (int rank = 0; rank < ring.size(); ++rank) length += ring.tokens_of(rank);
  std::vector<Piece> pieces;
  for (const Text& text : texts_of(ring, length)) {
    int64_t own_before = 0;
    for (const Range& own : ring.tokens[static_cast<size_t>(ring.group->rank())]) {
      int64_t theirs_before = 0;
      for (const Range& theirs : ring.tokens[static_cast<size_t>(owner)]) {
        add_pieces(ring, like, text.row, both(own, text.tokens), both(theirs, text.tokens), own.begin - own_before,
                   theirs.begin - theirs_before, pieces);
        theirs_before += theirs.numel();
      }
      own_before += own.numel();
    }
  }
  return pieces;
}

// (batch, tokens, …) -> those of a piece, as the kernel takes them: (rows, …, tokens, …) with the next two exchanged.
at::Tensor part(const at::Tensor& x, std::optional<int64_t> row, const Range& tokens) {
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

void attend(const Ring& ring, const std::vector<Piece>& pieces, const at::Tensor& query, const at::Tensor& block,
            Attended& all) {
  for (const Piece& piece : pieces) {
    const auto [context, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
        part(query, piece.row, piece.queries), part(block[0], piece.row, piece.keys),
        part(block[1], piece.row, piece.keys), /*dropout_p=*/0, piece.causal,
        piece.mask.defined() ? std::optional(piece.mask) : std::nullopt, ring.scale);
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
    go_round(ring, key, value, [&](int passes, const at::Tensor& block) {
      attend(ring, pieces_with(ring, ring.owner(passes), query), query, block, all);
    });
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
      of.add(pieces_with(ring, ring.owner(passes), query), block, query_grad, block_grad);
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

    void add(const std::vector<Piece>& pieces, const at::Tensor& block, const at::Tensor& query_grad,
             const at::Tensor& block_grad) const {
      for (const Piece& piece : pieces) {
        const auto own = [&](const at::Tensor& x) { return part(x, piece.row, piece.queries); };
        const auto theirs = [&](const at::Tensor& x) { return part(x, piece.row, piece.keys); };
        const auto [to_query, to_key, to_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            own(grad), own(saved[0]), theirs(block[0]), theirs(block[1]), own(saved[3]), own(saved[4]),
            /*dropout_p=*/0, piece.causal, piece.mask.defined() ? std::optional(piece.mask) : std::nullopt, ring.scale);
        own(query_grad).add_(to_query);
        theirs(block_grad[0]).add_(to_key);
        theirs(block_grad[1]).add_(to_value);
      }
    }
  };
};

// Whether tokens that are there see none that are not, as none stands before them.
bool padding_is_behind(const at::Tensor& present) {
  const int64_t length = present.size(1);
  return length < 2 || !present.narrow(1, 1, length - 1)
                            .logical_and(present.narrow(1, 0, length - 1).logical_not())
                            .any()
                            .item<bool>();
}

}  // namespace

TokensOfRanks balanced_tokens(int64_t length, int ranks) {
  const std::vector<int64_t> bounds = layout::uniform_bounds(length, 2 * static_cast<int64_t>(ranks));
  TokensOfRanks tokens;
  for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
    const size_t mirrored = bounds.size() - 2 - rank;
    tokens.push_back({{bounds[rank], bounds[rank + 1]}, {bounds[mirrored], bounds[mirrored + 1]}});
    if (mirrored == rank + 1) tokens.back() = {{bounds[rank], bounds[mirrored + 1]}};
  }
  return tokens;
}

at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::shared_ptr<comm::Group>& group, const TokensOfRanks& tokens,
                          const AttentionPattern& pattern, double scale) {
  TESSERA_INVARIANT(pattern.causal && query.is_cpu() && key.sizes() == value.sizes());
  Ring ring{
      .group = group, .tokens = tokens, .pattern = pattern, .scale = scale == 0 ? std::nullopt : std::optional(scale)};
  if (pattern.present.defined() && padding_is_behind(pattern.present)) ring.pattern.present = at::Tensor();
  return RingAttention::apply(query, key, value, ring);
}

}  // namespace tessera::nn

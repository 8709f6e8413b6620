#include "tessera/nn/shared_rows.h"

#include <ATen/ops/cat.h>

#include <vector>

#include "tessera/base/error.h"
#include "tessera/layout/consecutive_parts.h"
#include "tessera/nn/head_exchange.h"
#include "tessera/nn/ring_attention.h"

namespace tessera::nn {
namespace {

std::vector<layout::Range> consecutive_tokens(int64_t length, int ranks) {
  const std::vector<int64_t> bounds = layout::uniform_bounds(length, ranks);
  std::vector<layout::Range> tokens;
  for (size_t rank = 0; rank + 1 < bounds.size(); ++rank) tokens.push_back({bounds[rank], bounds[rank + 1]});
  return tokens;
}

std::vector<layout::Range> firsts(const TokensOfRanks& tokens) {
  std::vector<layout::Range> ranges;
  for (const std::vector<layout::Range>& of_rank : tokens) ranges.push_back(of_rank.front());
  return ranges;
}

}  // namespace

SharedRows::SharedRows(const ContextAxis& axis, int64_t length) : axis_(axis) {
  if (axis.attention() == ContextAttention::kRing) {
    tokens_ = balanced_tokens(length, axis.size());
    return;
  }
  for (const layout::Range& range : consecutive_tokens(length, axis.size())) tokens_.push_back({range});
}

at::Tensor SharedRows::own(const at::Tensor& rows) const {
  std::vector<at::Tensor> parts;
  for (const layout::Range& range : tokens_[static_cast<size_t>(axis_.rank())]) {
    parts.push_back(rows.narrow(1, range.begin, range.numel()));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, 1);
}

std::shared_ptr<const RingPieces> SharedRows::ring_pieces(const AttentionPattern& pattern, at::ScalarType dtype) const {
  for (const auto& pieces : ring_pieces_) {
    if (pieces->are_of(pattern, dtype)) return pieces;
  }
  return ring_pieces_.emplace_back(std::make_shared<const RingPieces>(tokens_, axis_.rank(), pattern, dtype));
}

at::Tensor SharedRows::attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const AttentionPattern& pattern, const AttentionOptions& options) const {
  if (axis_.size() == 1) return attention(query, key, value, pattern, options);
  if (axis_.attention() == ContextAttention::kRing) {
    TESSERA_INVARIANT(options.dropout == 0 && !options.bias.defined());
    const auto pieces = ring_pieces(pattern, query.scalar_type());
    return ring_attention(query, key, value, axis_.group(), pieces, options.scale).flatten(2);
  }
  const HeadExchanges by = exchanges_of(axis_.group(), firsts(tokens_), query.size(2), key.size(2));
  const at::Tensor context =
      attention(by.queries.to_heads(query), by.keys.to_heads(key), by.keys.to_heads(value), pattern, options);
  const at::Tensor of_heads = context.view({context.size(0), context.size(1), -1, value.size(3)});
  return by.queries.to_tokens(of_heads).flatten(2);
}

}  // namespace tessera::nn

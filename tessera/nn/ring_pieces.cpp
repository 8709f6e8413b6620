#include "tessera/nn/ring_pieces.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/layout/consecutive_parts.h"
#include "tessera/nn/causal_mask.h"

namespace tessera::nn {
namespace {

using layout::Range;
using Seen = RingPiece::Seen;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 2;

// Which tokens may see each other: of one row, or, where every row is one text, of all rows.
struct Text {
  std::optional<int64_t> row;
  Range tokens;
};

std::vector<Text> texts_of(const AttentionPattern& pattern, int64_t length) {
  std::vector<Text> texts;
  int64_t at = 0;
  for (const int64_t document : pattern.documents) {
    const int64_t begin = at % length;
    texts.push_back({at / length, {begin, begin + document}});
    at += document;
  }
  if (texts.empty()) texts.push_back({std::nullopt, {0, length}});
  return texts;
}

Range both(const Range& one, const Range& other) {
  const int64_t begin = std::max(one.begin, other.begin);
  return {begin, std::max(begin, std::min(one.end, other.end))};
}

// Large, but finite, so that a piece of which a query sees nothing weighs nothing beside one of which it sees
// something.
double unseen(at::ScalarType dtype) { return dtype == at::kHalf ? -6e4 : -1e30; }

at::Tensor made_mask(const RingPiece& piece, AttentionPattern pattern, at::ScalarType dtype) {
  if (piece.seen == Seen::kByPlace) pattern.present = at::Tensor();
  const at::Tensor seen = causal_mask(pattern, {piece.first_query, piece.first_query + piece.queries.numel()},
                                      {piece.first_key, piece.first_key + piece.keys.numel()}, at::kCPU);
  return at::zeros(seen.sizes(), dtype).masked_fill_(seen.logical_not(), unseen(dtype));
}

// The work of one rank's queries with one rank's keys.
class Work {
 public:
  explicit Work(const AttentionPattern& pattern)
      : pattern_(pattern), window_(pattern.window > 0 ? pattern.window : kNoLimit) {}

  std::vector<RingPiece> between(const std::vector<Range>& own, const std::vector<Range>& theirs,
                                 const std::vector<Text>& texts) const {
    std::vector<RingPiece> pieces;
    for (const Text& text : texts) {
      int64_t own_before = 0;
      for (const Range& queries : own) {
        int64_t theirs_before = 0;
        for (const Range& keys : theirs) {
          for (RingPiece& piece : pieces_of(both(queries, text.tokens), both(keys, text.tokens))) {
            piece.row = text.row;
            piece.queries = shifted(piece.queries, own_before - queries.begin);
            piece.keys = shifted(piece.keys, theirs_before - keys.begin);
            pieces.push_back(std::move(piece));
          }
          theirs_before += keys.numel();
        }
        own_before += queries.numel();
      }
    }
    return pieces;
  }

 private:
  static Range shifted(const Range& range, int64_t by) { return {range.begin + by, range.end + by}; }

  bool has_padding(const Range& keys) const {
    return pattern_.present.defined() && !pattern_.present.narrow(1, keys.begin, keys.numel()).all().item<bool>();
  }

  // A mask is no larger than it need be for a window, and of bounded size otherwise.
  int64_t queries_at_once(const Range& keys) const {
    constexpr int64_t kMasked = 512;
    if (pattern_.window > 0) return std::max(window_, kMasked);
    return has_padding(keys) ? kMasked : kNoLimit;
  }

  // All being places in a row.
  std::vector<RingPiece> pieces_of(const Range& all_queries, const Range& all_keys) const {
    std::vector<RingPiece> pieces;
    const int64_t step = std::min(queries_at_once(all_keys), all_queries.numel());
    for (int64_t begin = all_queries.begin; begin < all_queries.end; begin += step) {
      Range queries{begin, std::min(begin + step, all_queries.end)};
      const Range keys = both(all_keys, {queries.begin - window_ + 1, queries.end});
      queries = both(queries, {keys.begin, keys.end + window_ - 1});
      if (keys.numel() == 0 || queries.numel() == 0) continue;
      pieces.push_back({.row = std::nullopt,
                        .queries = queries,
                        .keys = keys,
                        .seen = seen(queries, keys),
                        .first_query = queries.begin,
                        .first_key = keys.begin,
                        .mask = {}});
    }
    return pieces;
  }

  Seen seen(const Range& queries, const Range& keys) const {
    if (has_padding(keys)) return Seen::kPresent;
    if (queries == keys && queries.numel() <= window_) return Seen::kCausal;
    const bool sees_all = keys.end <= queries.begin + 1 && keys.begin > queries.end - 1 - window_;
    return sees_all ? Seen::kAll : Seen::kByPlace;
  }

  const AttentionPattern& pattern_;
  int64_t window_;
};

// Gives pieces their masks, while there is room.
void keep_masks(std::vector<std::vector<RingPiece>>& pieces, const AttentionPattern& pattern, at::ScalarType dtype) {
  std::map<std::tuple<int64_t, int64_t, int64_t>, at::Tensor> by_place;  // of how many queries and keys, how far apart
  int64_t room = RingPieces::kMostOfMasks;
  const auto made = [&](const RingPiece& piece) {
    const int64_t rows = piece.seen == Seen::kPresent ? pattern.present.size(0) : 1;
    const auto bytes =
        rows * piece.queries.numel() * piece.keys.numel() * static_cast<int64_t>(c10::elementSize(dtype));
    if (bytes > room) return at::Tensor();
    room -= bytes;
    return made_mask(piece, pattern, dtype);
  };
  for (std::vector<RingPiece>& with_rank : pieces) {
    for (RingPiece& piece : with_rank) {
      if (piece.seen == Seen::kPresent) piece.mask = made(piece);
      if (piece.seen != Seen::kByPlace) continue;
      at::Tensor& mask = by_place[{piece.queries.numel(), piece.keys.numel(), piece.first_query - piece.first_key}];
      if (!mask.defined()) mask = made(piece);
      piece.mask = mask;
    }
  }
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

RingPieces::RingPieces(const TokensOfRanks& tokens, int rank, const AttentionPattern& pattern, at::ScalarType dtype)
    : tokens_(tokens), pattern_(pattern), dtype_(dtype) {
  TESSERA_INVARIANT(pattern.causal);
  AttentionPattern needed = pattern;
  if (needed.present.defined() && padding_is_behind(needed.present)) needed.present = at::Tensor();
  int64_t length = 0;
  for (size_t each = 0; each < tokens.size(); ++each) length += tokens_of(static_cast<int>(each));
  const std::vector<Text> texts = texts_of(needed, length);
  for (const std::vector<Range>& theirs : tokens) {
    pieces_.push_back(Work(needed).between(tokens[static_cast<size_t>(rank)], theirs, texts));
  }
  keep_masks(pieces_, needed, dtype);
}

bool RingPieces::are_of(const AttentionPattern& pattern, at::ScalarType dtype) const {
  return dtype == dtype_ && pattern.causal == pattern_.causal && pattern.window == pattern_.window &&
         pattern.present.is_same(pattern_.present) && pattern.documents == pattern_.documents;
}

int64_t RingPieces::tokens_of(int rank) const {
  int64_t count = 0;
  for (const Range& range : tokens_[static_cast<size_t>(rank)]) count += range.numel();
  return count;
}

std::optional<at::Tensor> RingPieces::mask(const RingPiece& piece) const {
  if (piece.seen == Seen::kAll || piece.seen == Seen::kCausal) return std::nullopt;
  return piece.mask.defined() ? piece.mask : made_mask(piece, pattern_, dtype_);
}

}  // namespace tessera::nn

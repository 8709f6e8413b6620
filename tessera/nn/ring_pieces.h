// What ring attention (ring_attention.h) has to compute under a pattern: which of a rank's queries with which keys of
// each rank. It is the same in all layers that have the pattern, forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/layout/range.h"
#include "tessera/nn/attention.h"

namespace tessera::nn {

// Of each rank, which tokens of a row it has, in ascending order.
using TokensOfRanks = std::vector<std::vector<layout::Range>>;

// Rows of so many tokens in 2 * ranks parts, of which rank r has part r and part 2 * ranks - 1 - r: under a causal
// pattern every rank has the same work (Grattafiori et al. 2024, arXiv 2407.21783, section 3.3.2). Where the length
// does not divide, the first parts have one more token.
TokensOfRanks balanced_tokens(int64_t length, int ranks);

// What one call of the kernel computes.
struct RingPiece {
  enum class Seen {
    kAll,      // each query sees each key
    kCausal,   // queries and keys are the same tokens, and each sees those before it: the kernel needs no mask
    kByPlace,  // a mask says so, the same one for all pieces of these sizes and this distance
    kPresent,  // a mask says so, for some keys are padding
  };

  std::optional<int64_t> row;   // none: all
  layout::Range queries, keys;  // counted among the tokens that this rank, and that of the keys, has
  Seen seen = Seen::kAll;
  int64_t first_query = 0, first_key = 0;  // their places in a row
  at::Tensor mask;                         // where there is one, and it is kept
};

class RingPieces {
 public:
  // `pattern` is causal, and of whole rows on the CPU; `rank` has the queries, which are of this dtype.
  RingPieces(const TokensOfRanks& tokens, int rank, const AttentionPattern& pattern, at::ScalarType dtype);

  bool are_of(const AttentionPattern& pattern, at::ScalarType dtype) const;

  int64_t tokens_of(int rank) const;
  const std::vector<RingPiece>& with_keys_of(int rank) const { return pieces_[static_cast<size_t>(rank)]; }

  // Added to query · key: (batch or 1, 1, queries, keys) in the queries' dtype. None where the kernel needs none.
  std::optional<at::Tensor> mask(const RingPiece& piece) const;

  // Bytes of the masks that are kept: few, because many pieces have the same. Others are made for each use.
  static constexpr int64_t kMostOfMasks = 64 << 20;

 private:
  TokensOfRanks tokens_;
  AttentionPattern pattern_;
  at::ScalarType dtype_;
  std::vector<std::vector<RingPiece>> pieces_;  // by who has the keys
};

}  // namespace tessera::nn

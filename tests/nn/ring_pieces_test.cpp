#include "tessera/nn/ring_pieces.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace tessera::nn::ring_pieces_test {
namespace {

using Seen = RingPiece::Seen;

int64_t place(const std::vector<layout::Range>& tokens, int64_t own) {
  for (const layout::Range& range : tokens) {
    if (own < range.numel()) return range.begin + own;
    own -= range.numel();
  }
  return -1;
}

// How often a query meets a key in all that all ranks compute: (rows, length, length).
at::Tensor meetings(const TokensOfRanks& tokens, const AttentionPattern& pattern, int64_t rows, int64_t length) {
  at::Tensor counts = at::zeros({rows, length, length}, at::kLong);
  const auto ranks = static_cast<int>(tokens.size());
  for (int rank = 0; rank < ranks; ++rank) {
    const RingPieces pieces(tokens, rank, pattern, at::kFloat);
    for (int owner = 0; owner < ranks; ++owner) {
      for (const RingPiece& piece : pieces.with_keys_of(owner)) {
        const std::optional<at::Tensor> mask = pieces.mask(piece);
        for (int64_t i = 0; i < piece.queries.numel(); ++i) {
          const int64_t query = place(tokens[static_cast<size_t>(rank)], piece.queries.begin + i);
          EXPECT_EQ(query, piece.first_query + i);
          for (int64_t j = 0; j < piece.keys.numel(); ++j) {
            const int64_t key = place(tokens[static_cast<size_t>(owner)], piece.keys.begin + j);
            for (int64_t row = 0; row < rows; ++row) {
              if (piece.row && *piece.row != row) continue;
              const bool seen = mask ? (*mask)[mask->size(0) == 1 ? 0 : row][0][i][j].item<float>() == 0
                                     : piece.seen == Seen::kAll || j <= i;
              if (seen) counts[row][query][key] += 1;
            }
          }
        }
      }
    }
  }
  return counts;
}

TEST(RingPieces, EachQueryMeetsEachKeyThatItSeesOnce) {
  constexpr int64_t kRows = 2, kLength = 17;
  const at::Tensor places = at::arange(kLength);
  const at::Tensor query = places.unsqueeze(1), key = places.unsqueeze(0);
  const at::Tensor in_front = at::stack({places >= 6, places >= 0}), within = at::stack({places != 5, places != 11});
  for (const int ranks : {1, 2, 3, 5}) {
    const TokensOfRanks tokens = balanced_tokens(kLength, ranks);
    for (const int64_t window : {0, 1, 4, 16}) {
      at::Tensor seen = (key <= query).expand({kRows, kLength, kLength});
      if (window > 0) seen = seen.logical_and(key > query - window);
      EXPECT_TRUE(meetings(tokens, {.causal = true, .window = window}, kRows, kLength).equal(seen.to(at::kLong)));
      for (const at::Tensor& present : {in_front, within}) {
        const at::Tensor expected = seen.logical_and(present.unsqueeze(1)).logical_or(key == query).to(at::kLong);
        const at::Tensor found =
            meetings(tokens, {.causal = true, .window = window, .present = present}, kRows, kLength);
        // What padding sees beside itself has no meaning.
        EXPECT_TRUE(found.mul(present.unsqueeze(2)).equal(expected.mul(present.unsqueeze(2))));
        EXPECT_TRUE(found.diagonal(0, 1, 2).equal(at::ones({kRows, kLength}, at::kLong)));
      }
      const std::vector<int64_t> documents = {3, 9, 5, 16, 1};  // of both rows
      const at::Tensor of_document = at::repeat_interleave(at::arange(5), at::tensor(documents)).view({kRows, kLength});
      const at::Tensor alike = of_document.unsqueeze(1) == of_document.unsqueeze(2);
      EXPECT_TRUE(meetings(tokens, {.causal = true, .window = window, .documents = documents}, kRows, kLength)
                      .equal(seen.logical_and(alike).to(at::kLong)));
    }
  }
}

int64_t bytes_of_masks(const RingPieces& pieces, int ranks) {
  std::set<const void*> known;
  int64_t bytes = 0;
  for (int owner = 0; owner < ranks; ++owner) {
    for (const RingPiece& piece : pieces.with_keys_of(owner)) {
      if (piece.mask.defined() && known.insert(piece.mask.unsafeGetTensorImpl()).second) {
        bytes += static_cast<int64_t>(piece.mask.nbytes());
      }
    }
  }
  return bytes;
}

// The row has 128 pieces of a window; all masks together would be 512 MB.
TEST(RingPieces, OneMaskServesAllPiecesOfAWindow) {
  constexpr int64_t kLength = 131072, kWindow = 1024;
  const RingPieces pieces(balanced_tokens(kLength, 4), 1, {.causal = true, .window = kWindow}, at::kFloat);
  std::set<const void*> masks;
  int64_t masked = 0;
  for (int owner = 0; owner < 4; ++owner) {
    for (const RingPiece& piece : pieces.with_keys_of(owner)) {
      if (piece.seen != Seen::kByPlace) continue;
      ++masked;
      EXPECT_TRUE(piece.mask.defined());
      masks.insert(piece.mask.unsafeGetTensorImpl());
    }
  }
  EXPECT_GE(masked, 30);
  EXPECT_LE(masks.size(), 3);
  EXPECT_LE(bytes_of_masks(pieces, 4), 3 * (2 * kWindow) * kWindow * 4);
}

TEST(RingPieces, APieceWithoutPaddingNeedsNoMask) {
  constexpr int64_t kLength = 4096;
  const at::Tensor places = at::arange(kLength).unsqueeze(0);
  const RingPieces in_front(balanced_tokens(kLength, 2), 1, {.causal = true, .present = places >= 3}, at::kFloat);
  const RingPieces behind(balanced_tokens(kLength, 2), 1, {.causal = true, .present = places < 3}, at::kFloat);
  int64_t masked = 0, plain = 0;
  for (int owner = 0; owner < 2; ++owner) {
    for (const RingPiece& piece : in_front.with_keys_of(owner)) {
      (piece.seen == Seen::kPresent ? masked : plain) += 1;
      EXPECT_EQ(piece.seen == Seen::kPresent, piece.first_key == 0);
    }
    for (const RingPiece& piece : behind.with_keys_of(owner)) EXPECT_FALSE(behind.mask(piece));
  }
  EXPECT_GT(masked, 0);
  EXPECT_GT(plain, 0);
}

// Padding in front of rows so long that the masks of all queries would be 1 GB.
TEST(RingPieces, MasksOfPaddingAreKeptWhileThereIsRoom) {
  constexpr int64_t kLength = 32768;
  const at::Tensor places = at::arange(kLength).unsqueeze(0);
  const RingPieces pieces(balanced_tokens(kLength, 2), 0, {.causal = true, .present = places % 9 != 0}, at::kFloat);
  const int64_t kept = bytes_of_masks(pieces, 2);
  EXPECT_GT(kept, RingPieces::kMostOfMasks / 2);
  EXPECT_LE(kept, RingPieces::kMostOfMasks);
  const RingPiece& last = pieces.with_keys_of(0).back();
  EXPECT_FALSE(last.mask.defined());
  EXPECT_THAT(pieces.mask(last)->sizes(), testing::ElementsAre(1, 1, last.queries.numel(), last.keys.numel()));
}

TEST(RingPieces, ServeTheirPatternAlone) {
  const at::Tensor present = at::ones({1, 8}, at::kBool);
  const AttentionPattern pattern{.causal = true, .window = 3, .present = present};
  const RingPieces pieces(balanced_tokens(8, 2), 0, pattern, at::kFloat);
  EXPECT_TRUE(pieces.are_of(pattern, at::kFloat));
  EXPECT_FALSE(pieces.are_of(pattern, at::kBFloat16));
  EXPECT_FALSE(pieces.are_of({.causal = true, .window = 4, .present = present}, at::kFloat));
  EXPECT_FALSE(pieces.are_of({.causal = true, .window = 3, .present = present.clone()}, at::kFloat));
  EXPECT_FALSE(pieces.are_of({.causal = true, .window = 3}, at::kFloat));
}

}  // namespace
}  // namespace tessera::nn::ring_pieces_test

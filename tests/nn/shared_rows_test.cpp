#include "tessera/nn/shared_rows.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tessera/comm/group.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::nn::shared_rows_test {
namespace {

using test::spawn_ranks;
using enum ContextAttention;

constexpr int64_t kBatch = 2;

struct Sizes {
  int64_t heads, key_heads, length;
};

// Beside attention by LibTorch of whole rows, which every rank computes: what leaves, and all gradients, of the tokens
// that are there.
void attends_as_one_rank(const std::shared_ptr<comm::Group>& world, ContextAttention by, const Sizes& sizes,
                         const AttentionPattern& pattern, at::ScalarType dtype = at::kFloat) {
  constexpr int64_t kHeadSize = 4;
  at::manual_seed(3);
  const auto drawn = [&](int64_t heads) {
    return at::randn({kBatch, sizes.length, heads, kHeadSize}).to(dtype).requires_grad_(true);
  };
  const at::Tensor query = drawn(sizes.heads), key = drawn(sizes.key_heads), value = drawn(sizes.key_heads);
  at::Tensor weights = at::randn({kBatch, sizes.length, sizes.heads * kHeadSize}).to(dtype);
  if (pattern.present.defined()) weights = weights * pattern.present.unsqueeze(2);
  const AttentionOptions options{.scale = 0.4};
  const at::Tensor whole = attention(query, key, value, pattern, options);
  (whole * weights).sum().backward();

  const SharedRows rows(ContextAxis(world, by), sizes.length);
  std::vector<at::Tensor> own;
  for (const at::Tensor& tensor : {query, key, value}) {
    own.push_back(rows.own(tensor).detach().clone().requires_grad_(true));
  }
  ASSERT_LT(own[0].size(1), sizes.length);
  const at::Tensor context = rows.attend(own[0], own[1], own[2], pattern, options);
  (context * rows.own(weights)).sum().backward();
  const bool exact = dtype == at::kFloat;  // else a few roundings to 8 bits, of numbers of about 1
  const auto alike = [&](const at::Tensor& one, const at::Tensor& other) {
    return at::allclose(one, other, exact ? 1e-5 : 0.03, exact ? 1e-6 : 0.03);
  };
  const at::Tensor present =
      rows.own(pattern.present.defined() ? pattern.present : at::ones({kBatch, sizes.length}, at::kBool));
  EXPECT_TRUE(alike(context * present.unsqueeze(2), rows.own(whole) * present.unsqueeze(2)));
  EXPECT_TRUE(at::isfinite(context).all().item<bool>());
  const std::vector<at::Tensor> expected = {query.grad(), key.grad(), value.grad()};
  for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(alike(own[i].grad(), rows.own(expected[i]))) << i;
  EXPECT_GT(expected[1].abs().sum().item<float>(), 0);
}

TEST(SharedRows, UlyssesAttendsAsOneRank) {
  // Lengths that do not divide, heads that do not, several ranks for a key head, and rows shorter than there are ranks.
  for (const Sizes& sizes : {Sizes{6, 3, 7}, Sizes{3, 3, 9}, Sizes{6, 1, 8}, Sizes{5, 5, 2}}) {
    spawn_ranks(3, [&](const auto& world) { attends_as_one_rank(world, kUlysses, sizes, {.causal = true}); });
  }
}

TEST(SharedRows, ARingAttendsAsOneRank) {
  // Fewer heads than ranks, key heads that do not go round, lengths that do not divide, and ranks without a token.
  for (const Sizes& sizes : {Sizes{1, 1, 24}, Sizes{10, 2, 25}, Sizes{7, 7, 31}, Sizes{4, 1, 7}, Sizes{2, 2, 2}}) {
    for (const int ranks : {3, 4}) {
      if (sizes.length < ranks && ranks == 4) continue;
      spawn_ranks(ranks, [&](const auto& world) { attends_as_one_rank(world, kRing, sizes, {.causal = true}); });
    }
  }
  spawn_ranks(2, [](const auto& world) {
    attends_as_one_rank(world, kRing, {4, 2, 20}, {.causal = true}, at::kBFloat16);
  });
}

TEST(SharedRows, TokensSeeThoseOfTheirWindowAlone) {
  for (const ContextAttention by : {kUlysses, kRing}) {
    for (const int64_t window : {1, 3, 8, 29, 40}) {
      spawn_ranks(3, [&](const auto& world) {
        attends_as_one_rank(world, by, {3, 3, 30}, {.causal = true, .window = window});
      });
    }
    // Longer than what a mask is made for at once.
    spawn_ranks(2, [&](const auto& world) {
      attends_as_one_rank(world, by, {2, 2, 2101}, {.causal = true, .window = 77});
    });
  }
}

TEST(SharedRows, TokensSeeNoPadding) {
  const at::Tensor places = at::arange(13);
  // Behind each row, before one, and in the middle.
  const std::vector<at::Tensor> presents = {at::stack({places < 9, places < 13}), at::stack({places >= 6, places >= 0}),
                                            at::stack({(places < 3).logical_or(places > 8), places != 5})};
  for (const ContextAttention by : {kUlysses, kRing}) {
    for (const at::Tensor& present : presents) {
      spawn_ranks(3, [&](const auto& world) {
        attends_as_one_rank(world, by, {3, 3, 13}, {.causal = true, .present = present});
        attends_as_one_rank(world, by, {3, 3, 13}, {.causal = true, .window = 4, .present = present});
      });
    }
  }
}

TEST(SharedRows, TokensSeeThoseOfTheirDocumentAlone) {
  for (const ContextAttention by : {kUlysses, kRing}) {
    for (const int64_t window : {0, 3}) {
      spawn_ranks(3, [&](const auto& world) {
        attends_as_one_rank(world, by, {3, 3, 23},
                            {.causal = true, .window = window, .documents = {1, 9, 13, 4, 2, 11, 6}});
      });
    }
  }
}

TEST(SharedRows, OneRankHasWholeRows) {
  const SharedRows rows(ContextAxis(), 5);
  const at::Tensor ids = at::arange(10).view({2, 5});
  EXPECT_TRUE(rows.own(ids).equal(ids));
}

// Pairs of a query and a key that it sees, which is what attention's time goes by.
TEST(SharedRows, ABalancedOrderGivesEachRankTheSameWork) {
  constexpr int64_t kLength = 2400;
  for (const int ranks : {2, 3, 4, 8}) {
    std::vector<int64_t> work;
    std::vector<bool> seen(kLength);
    for (const std::vector<layout::Range>& of_rank : balanced_tokens(kLength, ranks)) {
      work.push_back(0);
      for (const layout::Range& range : of_rank) {
        for (int64_t token = range.begin; token < range.end; ++token) {
          EXPECT_FALSE(seen[static_cast<size_t>(token)]);
          seen[static_cast<size_t>(token)] = true;
          work.back() += token + 1;
        }
      }
    }
    EXPECT_THAT(work, testing::Each(kLength * (kLength + 1) / 2 / ranks));
  }
  EXPECT_EQ(balanced_tokens(7, 2), (TokensOfRanks{{{0, 2}, {6, 7}}, {{2, 6}}}));
}

// What context_axis.h says of both.
TEST(SharedRows, BytesOnTheWireAreThoseOfTheFormulas) {
  constexpr int64_t kHeadSize = 4, kOwn = 8;
  for (const int ranks : {2, 4}) {
    for (const ContextAttention by : {kUlysses, kRing}) {
      const Sizes sizes{8, 4, kOwn * ranks};
      spawn_ranks(ranks, [&](const auto& world) {
        const int64_t before = world->bytes_sent();
        attends_as_one_rank(world, by, sizes, {.causal = true});
        const double formula =
            bytes_sent_for_token(by, {.heads = sizes.heads, .key_heads = sizes.key_heads, .context_ranks = ranks});
        EXPECT_EQ(static_cast<double>(world->bytes_sent() - before), formula * kHeadSize * kOwn * kBatch);
      });
    }
  }
}

}  // namespace
}  // namespace tessera::nn::shared_rows_test

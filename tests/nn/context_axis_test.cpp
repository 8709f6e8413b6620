#include "tessera/nn/context_axis.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/group.h"
#include "tessera/nn/attention.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::nn::context_axis_test {
namespace {

using test::spawn_ranks;
using testing::HasSubstr;

struct Sizes {
  int64_t heads, key_heads, length;
};

// Beside attention by LibTorch of whole rows, which every rank computes: what leaves, and all gradients.
void attends_as_one_rank(const std::shared_ptr<comm::Group>& world, const Sizes& sizes, bool padded) {
  constexpr int64_t kBatch = 2, kHeadSize = 4;
  at::manual_seed(3);
  const auto drawn = [&](int64_t heads) {
    return at::randn({kBatch, sizes.length, heads, kHeadSize}).requires_grad_(true);
  };
  const at::Tensor query = drawn(sizes.heads), key = drawn(sizes.key_heads), value = drawn(sizes.key_heads);
  const at::Tensor weights = at::randn({kBatch, sizes.length, sizes.heads * kHeadSize});
  AttentionPattern pattern{.causal = true};
  if (padded) pattern.present = at::arange(sizes.length).lt(sizes.length - 1).unsqueeze(0).expand({kBatch, -1});
  const at::Tensor whole = attention(query, key, value, pattern);
  (whole * weights).sum().backward();

  const SharedRows rows(ContextAxis(world), sizes.length);
  std::vector<at::Tensor> own;
  for (const at::Tensor& tensor : {query, key, value}) {
    own.push_back(rows.own(tensor).detach().clone().requires_grad_(true));
  }
  bool saw_whole_rows = false;
  const at::Tensor context =
      rows.attend(own[0], own[1], own[2], [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        saw_whole_rows = q.size(1) == sizes.length && q.size(2) < sizes.heads;
        return attention(q, k, v, pattern);
      });
  (context * rows.own(weights)).sum().backward();
  EXPECT_TRUE(saw_whole_rows);
  EXPECT_TRUE(at::allclose(context, rows.own(whole), 1e-5, 1e-6));
  const std::vector<at::Tensor> expected = {query.grad(), key.grad(), value.grad()};
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(at::allclose(own[i].grad(), rows.own(expected[i]), 1e-5, 1e-6)) << i;
  }
}

TEST(ContextAxis, RanksThatShareRowsAttendAsOneRank) {
  // Lengths that do not divide, heads that do not, several ranks for a key head, and rows shorter than there are ranks.
  for (const Sizes& sizes : {Sizes{6, 3, 7}, Sizes{3, 3, 9}, Sizes{6, 1, 8}, Sizes{5, 5, 2}, Sizes{4, 4, 1}}) {
    spawn_ranks(3, [&](const auto& world) { attends_as_one_rank(world, sizes, /*padded=*/false); });
  }
  spawn_ranks(4, [](const auto& world) { attends_as_one_rank(world, {6, 2, 10}, /*padded=*/true); });
}

TEST(ContextAxis, OneRankHasWholeRows) {
  const SharedRows rows(ContextAxis(), 5);
  const at::Tensor ids = at::arange(10).view({2, 5});
  EXPECT_TRUE(rows.own(ids).equal(ids));
}

std::string refusal(int64_t heads, int64_t key_heads, int tensor_ranks, int context_ranks) {
  try {
    ContextAxis::check_heads(heads, key_heads, tensor_ranks, context_ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

TEST(ContextAxis, HeadsThatDoNotGoRoundAreRefused) {
  EXPECT_EQ(refusal(8, 2, 1, 4), "");
  EXPECT_EQ(refusal(8, 2, 2, 4), "");  // a tensor rank has 4 heads of one key head
  EXPECT_THAT(refusal(8, 2, 2, 8), HasSubstr("4 attention heads of 1 key heads cannot be cut over 8 ranks"));
  EXPECT_THAT(refusal(6, 2, 1, 3), HasSubstr("parallel.context"));
  EXPECT_THAT(refusal(6, 2, 1, 3), HasSubstr("use at most 2 ranks, or 4, 6"));
}

}  // namespace
}  // namespace tessera::nn::context_axis_test

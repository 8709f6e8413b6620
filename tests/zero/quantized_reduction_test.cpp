#include "tessera/zero/quantized_reduction.h"

#include <gtest/gtest.h>

#include "tests/support/spawn_ranks.h"
#include "tests/zero/zeropp.h"

namespace tessera::zero::quantized_reduction_test {
namespace {

using test::came_out;
using test::kFourRanks;
using test::weights;

constexpr int64_t kShard = 320;

at::Tensor gradients_of(int rank) { return weights(kShard, rank + 1) * (rank + 1); }

// The two shards that the ranks of `place` in both inner groups own.
at::Tensor shards_of(const at::Tensor& whole, int place) {
  return at::cat({whole.narrow(0, place * kShard, kShard), whole.narrow(0, (2 + place) * kShard, kShard)});
}

// What rank `to` sums up of its inner group, {0, 1} or {2, 3}.
at::Tensor sum_within(int to) {
  at::Tensor sum = at::zeros({2 * kShard});
  for (const int from : {to / 2 * 2, to / 2 * 2 + 1}) {
    const at::Tensor part = shards_of(gradients_of(from), to % 2);
    sum += from == to ? part : came_out(part, 8);
  }
  return sum;
}

TEST(QuantizedReduction, AddsUpWhatComesOutOfEachLevel) {
  test::spawn_ranks(kFourRanks, [](const auto& world) {
    const DataGroups groups = test::two_levels(world);
    const int rank = world->rank();
    QuantizedReduction reduction(gradients_of(rank), groups, /*scale=*/0.25, "u");
    const at::Tensor result = reduction.take_result();
    at::Tensor want = at::zeros({kShard});
    for (const int from : {rank % 2, 2 + rank % 2}) {
      const at::Tensor part = sum_within(from).narrow(0, rank / 2 * kShard, kShard);
      want += from == rank ? part : came_out(part, 4);
    }
    EXPECT_TRUE(at::allclose(result, want * 0.25, 1e-6, 1e-7));
    at::Tensor exact = at::zeros({kShard});
    for (int from = 0; from < kFourRanks; ++from) exact += gradients_of(from).narrow(0, rank * kShard, kShard) * 0.25;
    EXPECT_FALSE(at::allclose(result, exact, 1e-3, 1e-3));
    EXPECT_TRUE(at::allclose(result, exact, 0, 0.2));
    EXPECT_EQ(groups.inner->bytes_sent(), kernels::quantized_bytes(2 * kShard, 8));
    EXPECT_EQ(groups.outer->bytes_sent(), kernels::quantized_bytes(kShard, 4));
  });
}

TEST(QuantizedReduction, OfOneLevelIsInEightBits) {
  test::spawn_ranks(kFourRanks, [](const auto& world) {
    const DataGroups groups = DataGroups::of(*comm::Mesh::data_parallel(world), true);
    const int rank = world->rank();
    const at::Tensor result = QuantizedReduction(gradients_of(rank), groups, 1, "u").take_result();
    at::Tensor want = at::zeros({kShard});
    for (int from = 0; from < kFourRanks; ++from) {
      const at::Tensor part = gradients_of(from).narrow(0, rank * kShard, kShard);
      want += from == rank ? part : came_out(part, 8);
    }
    EXPECT_TRUE(at::allclose(result, want, 1e-6, 1e-7));
    EXPECT_EQ(world->bytes_sent(), 3 * kernels::quantized_bytes(kShard, 8));
  });
}

TEST(QuantizedReduction, AnInfinityOnOneRankIsNoFiniteSum) {
  test::spawn_ranks(kFourRanks, [](const auto& world) {
    at::Tensor mine = gradients_of(world->rank());
    if (world->rank() == 3) mine[5] = std::numeric_limits<float>::infinity();  // of rank 0's shard
    const at::Tensor result = QuantizedReduction(mine, test::two_levels(world), 1, "u").take_result();
    EXPECT_EQ(result.isfinite().all().template item<bool>(), world->rank() != 0);
  });
}

}  // namespace
}  // namespace tessera::zero::quantized_reduction_test

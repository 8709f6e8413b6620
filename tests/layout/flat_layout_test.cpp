#include "tessera/layout/flat_layout.h"

#include <gtest/gtest.h>

namespace tessera::layout::flat_layout_test {
namespace {

const std::vector<ParamShape> kParams = {{"a", {5, 7}}, {"b", {3}}, {"c", {64}}};

TEST(FlatLayout, ParametersFollowEachOtherAlignedAndPadded) {
  const FlatLayout layout(kParams, 1);
  EXPECT_EQ(layout.params()[0].offset, 0);
  EXPECT_EQ(layout.params()[0].numel, 35);
  EXPECT_EQ(layout.params()[0].padded_numel, 64);  // the next multiple of 32
  EXPECT_EQ(layout.params()[1].offset, 64);
  EXPECT_EQ(layout.params()[2].offset, 96);
  EXPECT_EQ(layout.numel(), 160);
  EXPECT_EQ(layout.param_numel(), 35 + 3 + 64);
}

TEST(FlatLayout, SlicesAreEqualAlignedAndCoverTheBuffer) {
  for (const int64_t ranks : {1, 2, 3, 4, 7, 64}) {
    const FlatLayout layout(kParams, ranks);
    EXPECT_EQ(layout.shard_numel() % kAlignNumel, 0);
    EXPECT_EQ(layout.shard(0).begin, 0);
    EXPECT_EQ(layout.shard(ranks - 1).end, layout.numel());
    EXPECT_GE(layout.numel(), 160);
    EXPECT_LT(layout.numel(), 160 + kAlignNumel * ranks);
    for (int64_t rank = 1; rank < ranks; ++rank) EXPECT_EQ(layout.shard(rank).begin, layout.shard(rank - 1).end);
  }
}

TEST(FlatLayout, AParameterMayStraddleTwoSlices) {
  const FlatLayout fine(kParams, 5);  // slices of 32: a lies in two
  const auto first = fine.segments(fine.shard(0));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].param, 0u);
  EXPECT_EQ(first[0].numel, 32);
  EXPECT_EQ(first[0].first, 0);
  const auto second = fine.segments(fine.shard(1));
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].param, 0u);
  EXPECT_EQ(second[0].first, 32);
  EXPECT_EQ(second[0].numel, 3);          // 35 elements in all
  EXPECT_EQ(second[0].padded_numel, 32);  // and their padding
}

// Each element of each parameter lies in exactly one slice, at the place that its segment says.
TEST(FlatLayout, SegmentsOfAllSlicesCoverEachElementOnce) {
  for (const int64_t ranks : {1, 2, 3, 5, 8}) {
    const FlatLayout layout(kParams, ranks);
    std::vector<std::vector<int>> seen{std::vector<int>(35), std::vector<int>(3), std::vector<int>(64)};
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (const Segment& segment : layout.segments(layout.shard(rank))) {
        EXPECT_EQ(segment.offset - segment.first, layout.params()[segment.param].offset);
        EXPECT_EQ(segment.offset % kAlignNumel, 0);
        EXPECT_EQ(segment.padded_numel % kAlignNumel, 0);
        EXPECT_LE(segment.offset + segment.padded_numel, layout.shard(rank).end);
        for (int64_t i = 0; i < segment.numel; ++i) ++seen[segment.param][segment.first + i];
      }
    }
    for (const auto& counts : seen) {
      for (const int count : counts) EXPECT_EQ(count, 1);
    }
  }
}

TEST(FlatLayout, MoreRanksThanElementsLeavesSomeSlicesEmpty) {
  const FlatLayout layout({{"tiny", {2}}}, 4);
  EXPECT_EQ(layout.segments(layout.shard(0)).size(), 1u);
  for (int64_t rank = 1; rank < 4; ++rank) EXPECT_TRUE(layout.segments(layout.shard(rank)).empty());
}

}  // namespace
}  // namespace tessera::layout::flat_layout_test

// Numbers of DeepSpeed 0.19.8's partition_uniform and partition_balanced, or found by hand.
#include "tessera/layout/consecutive_parts.h"

#include <gtest/gtest.h>

namespace tessera::layout::consecutive_parts_test {
namespace {

using Bounds = std::vector<int64_t>;

TEST(ConsecutiveParts, TheFirstAreOneLargerWhereTheSizeDoesNotDivide) {
  EXPECT_EQ(uniform_bounds(30, 4), (Bounds{0, 8, 16, 23, 30}));
  EXPECT_EQ(uniform_bounds(22, 4), (Bounds{0, 6, 12, 17, 22}));
  EXPECT_EQ(uniform_bounds(2, 4), (Bounds{0, 1, 2, 2, 2}));
}

TEST(ConsecutiveParts, HeaviestAndLightestDifferLeast) {
  EXPECT_EQ(balanced_bounds({1, 1, 1, 1}, 2), (Bounds{0, 2, 4}));
  EXPECT_EQ(balanced_bounds({5, 1, 1, 1, 1, 1}, 2), (Bounds{0, 1, 6}));
  EXPECT_EQ(balanced_bounds({1, 2}, 3), (Bounds{0, 1, 2, 2}));
}

TEST(ConsecutiveParts, OfEqualCutsTheLastPartBeginsLatest) {
  EXPECT_EQ(balanced_bounds({1, 1, 1}, 2), (Bounds{0, 2, 3}));  // 2 and 1, as 1 and 2, differ by 1
}

}  // namespace
}  // namespace tessera::layout::consecutive_parts_test

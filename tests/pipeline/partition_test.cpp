#include "tessera/pipeline/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

namespace tessera::pipeline::partition_test {
namespace {

using testing::ElementsAre;

double heaviest(const std::vector<double>& weights, const std::vector<int64_t>& bounds) {
  double most = 0;
  for (size_t part = 0; part + 1 < bounds.size(); ++part) {
    most = std::max(most, std::accumulate(weights.begin() + bounds[part], weights.begin() + bounds[part + 1], 0.0));
  }
  return most;
}

// Tries all ways.
double lightest(const std::vector<double>& weights, int parts, std::vector<int64_t> bounds = {0}) {
  const auto count = static_cast<int64_t>(weights.size());
  if (parts == 1) {
    bounds.push_back(count);
    return heaviest(weights, bounds);
  }
  double best = std::numeric_limits<double>::infinity();
  for (int64_t end = bounds.back() + 1; end <= count - parts + 1; ++end) {
    std::vector<int64_t> longer = bounds;
    longer.push_back(end);
    best = std::min(best, lightest(weights, parts - 1, longer));
  }
  return best;
}

TEST(PipelinePartition, TheHeaviestPartIsAsLightAsItCanBe) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const int count = 1 + static_cast<int>(random() % 9);
    const int parts = 1 + static_cast<int>(random() % static_cast<unsigned>(count));
    std::vector<double> weights;
    for (int i = 0; i < count; ++i) weights.push_back(static_cast<double>(random() % 6));
    const auto bounds = balanced_bounds(weights, parts);
    ASSERT_EQ(bounds.size(), static_cast<size_t>(parts) + 1);
    EXPECT_EQ(bounds.front(), 0);
    EXPECT_EQ(bounds.back(), count);
    EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end(), std::less_equal<>())) << "a part is empty";
    EXPECT_EQ(heaviest(weights, bounds), lightest(weights, parts));
  }
}

TEST(PipelinePartition, FirstPartsAreLongest) {
  EXPECT_THAT(balanced_bounds({1, 1, 1, 1, 1}, 2), ElementsAre(0, 3, 5));
  EXPECT_THAT(balanced_bounds({5, 1, 1, 1, 1, 6}, 3), ElementsAre(0, 2, 5, 6));
  EXPECT_THAT(balanced_bounds({0, 0, 0}, 3), ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace tessera::pipeline::partition_test

#include "tessera/zero/memory_budget.h"

#include <gtest/gtest.h>

#include "tests/support/spawn_ranks.h"
#include "tests/zero/swap_files.h"
#include "tests/zero/three_params.h"

namespace tessera::zero::memory_budget_test {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kWhole = 288, kShard = 96;  // elements, pads included

TEST(MemoryBudget, CountsTheBytesOfTheZeroPapersTable) {
  test::spawn_ranks(test::kThreeRanks, [](const auto& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      test::ThreeParams model(test::mixed_policy(stage), {.states = 2}, world);
      const MemoryBudget budget = memory_budget(*model.sharded, /*cuts=*/true);
      EXPECT_EQ(budget.state.memory, 2 * (stage == 3 ? kShard : kWhole) + 4 * (stage >= 2 ? kShard : kWhole) +
                                         12 * (stage >= 1 ? kShard : kWhole));
      EXPECT_EQ(budget.state.disk, 0);
      EXPECT_EQ(budget.buffers, 0);
    }
  });
}

TEST(MemoryBudget, CountsWhatRestsOnDiskAndTheBuffersThroughWhichItComes) {
  const test::TemporaryFolder folder;
  test::spawn_ranks(test::kThreeRanks, [&](const auto& world) {
    Policy policy = test::mixed_policy(2);
    policy.offload.optimizer = test::swap_file(folder);
    test::ThreeParams model(policy, {.states = 2}, world);
    const MemoryBudget budget = memory_budget(*model.sharded, /*cuts=*/true);
    EXPECT_EQ(budget.state.memory, 2 * kWhole);
    EXPECT_EQ(budget.state.disk, 16 * kShard);
    // One tile of weight, gradient and two states, and the gradients on their way: each less than a page.
    EXPECT_EQ(budget.buffers, (4 + GradientReducer::kMaxLeaving) * kPage);
  });
}

}  // namespace
}  // namespace tessera::zero::memory_budget_test

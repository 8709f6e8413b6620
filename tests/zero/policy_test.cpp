#include "tessera/zero/policy.h"

#include <gtest/gtest.h>

namespace tessera::zero::policy_test {
namespace {

// Rajbhandari et al. 2020, section 3: optimizer state, then gradients, then parameters.
TEST(Policy, OfEachStageShardsWhatThePaperSays) {
  for (int stage = 0; stage <= 3; ++stage) {
    const Policy policy = policy_of_stage(stage, at::kBFloat16, /*ranks=*/4);
    EXPECT_EQ(policy.shard_optimizer, stage >= 1);
    EXPECT_EQ(policy.shard_gradients, stage >= 2);
    EXPECT_EQ(policy.shard_parameters, stage >= 3);
    EXPECT_EQ(policy.averaging.before * policy.averaging.after, 0.25);
  }
}

TEST(Policy, HasMasterWeightsWhereTheOptimizerWorksInAnotherDtype) {
  EXPECT_TRUE(policy_of_stage(1, at::kBFloat16, 2).has_master());
  EXPECT_FALSE(policy_of_stage(1, at::kFloat, 2).has_master());
}

// So that a part that is tested by itself does no more than it is told.
TEST(Policy, KeepsAndOffloadsNothingByItself) {
  const Policy policy = policy_of_stage(3, at::kFloat, 2);
  EXPECT_EQ(policy.residency.max_live_parameters, 0);
  EXPECT_EQ(policy.residency.prefetch_bucket_size, 0);
  EXPECT_EQ(policy.residency.param_persistence_threshold, 0);
  EXPECT_EQ(policy.offload.optimizer, nullptr);
  EXPECT_EQ(policy.offload.parameters, nullptr);
}

}  // namespace
}  // namespace tessera::zero::policy_test

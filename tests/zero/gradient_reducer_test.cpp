#include "tessera/zero/gradient_reducer.h"

#include <gtest/gtest.h>

#include "tests/support/spawn_ranks.h"
#include "tests/zero/three_params.h"

namespace tessera::zero::gradient_reducer_test {
namespace {

using test::kShapes;
using test::kThreeRanks;
using test::numbers;
using test::ThreeParams;

// (1 + 2 + 3) / 3 times the numbers of each parameter, in the unit's buffer with its pads.
at::Tensor mean_gradient(double times = 1) {
  at::Tensor buffer = at::zeros({288});
  int64_t offset = 0;
  for (size_t param = 0; param < kShapes.size(); ++param) {
    const at::Tensor flat = numbers(param, 1).view({-1}) * 2 * times;
    buffer.narrow(0, offset, flat.numel()).copy_(flat);
    offset += (flat.numel() + 31) / 32 * 32;
  }
  return buffer;
}

TEST(GradientReducer, GivesEachRankItsShardOfTheMeanAtEveryStage) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      ThreeParams model(policy_of_stage(stage, at::kFloat, kThreeRanks), {}, world);
      model.run_backward();
      const at::Tensor want = mean_gradient().narrow(0, 96 * world->rank(), 96);
      GradientReducer& reducer = model.sharded->reducer();
      EXPECT_TRUE(at::allclose(reducer.reduced_shard(0), want, /*rtol=*/1e-6, /*atol=*/0)) << stage;
      EXPECT_EQ(reducer.owned_grad(0).numel(), stage == 0 ? 288 : 96);
      EXPECT_NEAR(reducer.sum_of_squares(0).value(), want.square().sum().template item<double>(), 1e-2);
    }
  });
}

// Stages 0 and 1 reduce once, at the boundary; 2 and 3 in each backward.
TEST(GradientReducer, AddsUpTheBackwardsOfAnAccumulation) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      ThreeParams model(policy_of_stage(stage, at::kFloat, kThreeRanks), {}, world);
      const int64_t before = world->bytes_sent();
      model.sharded->reducer().set_boundary(false);
      model.run_backward();
      EXPECT_EQ(world->bytes_sent() > before, stage >= 2) << stage;
      model.sharded->reducer().set_boundary(true);
      model.run_backward();
      const at::Tensor want = mean_gradient(2).narrow(0, 96 * world->rank(), 96);
      EXPECT_TRUE(at::allclose(model.sharded->reducer().reduced_shard(0), want, 1e-6, 0)) << stage;
      model.sharded->reducer().clear();
      model.run_backward();
      EXPECT_TRUE(at::allclose(model.sharded->reducer().reduced_shard(0), want / 2, 1e-6, 0)) << "after clear()";
    }
  });
}

TEST(GradientReducer, KnowsWhichParametersHadAGradientHere) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    ThreeParams model(policy_of_stage(1, at::kFloat, kThreeRanks), {}, world);
    model.run_backward(/*used=*/world->rank() == 0 ? 1 : 3);
    const std::vector<bool> want{true, world->rank() != 0, world->rank() != 0};
    EXPECT_EQ(model.sharded->reducer().used(0), want);
    model.sharded->reducer().clear();
    EXPECT_EQ(model.sharded->reducer().used(0), std::vector<bool>(3, false));
  });
}

TEST(GradientReducer, KeepsARanksOwnGradientsWhereTheStepWantsThem) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    ThreeParams model(policy_of_stage(0, at::kFloat, kThreeRanks), {}, world);
    const int64_t before = world->bytes_sent();
    model.sharded->reducer().set_keeps_own(true);
    model.run_backward();
    EXPECT_EQ(world->bytes_sent(), before);
    const at::Tensor want = mean_gradient() / 2 * (world->rank() + 1.0);
    EXPECT_TRUE(at::allclose(model.sharded->reducer().owned_grad(0), want, 1e-6, 0));
  });
}

}  // namespace
}  // namespace tessera::zero::gradient_reducer_test

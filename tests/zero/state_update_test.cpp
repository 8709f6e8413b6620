#include "tessera/zero/state_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/spawn_ranks.h"
#include "tests/zero/three_params.h"

namespace tessera::zero::state_update_test {
namespace {

using test::kShapes;
using test::kThreeRanks;
using test::numbers;
using test::ThreeParams;

// Of the mean gradient, twice the numbers.
double norm_of_the_first(size_t used) {
  double squares = 0;
  for (size_t param = 0; param < used; ++param) {
    squares += (numbers(param, 1) * 2).to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(squares);
}

TEST(StateUpdate, PlansTheNormTheClippingAndWhoIsUsedAlikeOnEveryRank) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      ThreeParams model(policy_of_stage(stage, at::kFloat, kThreeRanks), {}, world);
      model.run_backward(/*used=*/world->rank() == 2 ? 2 : 1);  // `b` on rank 2 alone: its gradient is 3 / 3 of them
      const StepPlan plan = plan_step(*model.sharded, {.max_norm = 1.5, .loss_scale = 4});
      const double squares = std::pow(norm_of_the_first(1), 2) + numbers(1, 1).square().sum().template item<double>();
      EXPECT_NEAR(plan.result.grad_norm, std::sqrt(squares) / 4, 1e-4);
      EXPECT_NEAR(plan.grad_divisor, 4 * plan.result.grad_norm / 1.5, 1e-4) << "scale, and norm over its maximum";
      EXPECT_THAT(plan.used_anywhere, testing::ElementsAre(1, 1, 0));
      EXPECT_FALSE(plan.result.skipped);
    }
  });
}

TEST(StateUpdate, SkipsAStepThatIsNotFiniteAndNamesWhoseGradient) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      ThreeParams model(policy_of_stage(stage, at::kFloat, kThreeRanks), {}, world);
      model.sharded->before_forward(0, {});
      const double factor = world->rank() == 1 ? INFINITY : 1;  // of `c`, on one rank
      const at::Tensor loss = model.params[0].sum() + (model.params[2] * factor).sum();
      model.sharded->after_forward(0, {loss});
      model.sharded->begin_backward();
      loss.backward();
      model.sharded->finish_backward();
      const StepPlan plan = plan_step(*model.sharded, {.name_nonfinite = true});
      EXPECT_TRUE(plan.result.skipped);
      EXPECT_THAT(plan.result.nonfinite, testing::ElementsAre("c"));
      EXPECT_FALSE(plan_step(*model.sharded, {.skip_nonfinite = false}).result.skipped);
    }
  });
}

}  // namespace
}  // namespace tessera::zero::state_update_test

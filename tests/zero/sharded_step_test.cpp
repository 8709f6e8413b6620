// What a step asks of every parameter's gradient, and optimizers that take the whole model at once.
#include "tessera/zero/sharded_step.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/zero/param_access.h"
#include "tests/support/spawn_ranks.h"
#include "tests/zero/three_params.h"

namespace tessera::zero::sharded_step_test {
namespace {

using test::kPieces;
using test::kShapes;
using test::kThreeRanks;
using test::mean_gradient;
using test::mixed_policy;
using test::numbers;
using test::ThreeParams;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr StateOfParam kWeight{.kind = StateOfParam::Kind::kWeight};

// weight -= lr * gradient, of the whole model in one call; notes what it was given.
class WholeModelDescent : public optim::Optimizer {
 public:
  std::vector<std::string> state_names() const override { return {}; }
  bool takes_whole_model() const override { return true; }
  void update(std::span<optim::ParamShard> shards, const optim::UpdateInput& input) const override {
    ++calls;
    EXPECT_EQ(input.peers, nullptr);
    names.clear();
    for (const optim::WholeParam& param : input.params) names.push_back(param.name);
    pieces.assign(input.params.size(), layout::Range{});
    steps.assign(input.params.size(), 0);
    for (const optim::ParamShard& shard : shards) {
      EXPECT_EQ(shard.weight.scalar_type(), at::kFloat);
      EXPECT_EQ(shard.grad.scalar_type(), at::kFloat);
      EXPECT_TRUE(shard.state.empty());
      shard.weight.sub_(shard.grad * (input.groups[shard.group].lr / input.grad_divisor));
      const int64_t end = std::min(shard.first + shard.weight.numel(), input.params[shard.param].numel);
      pieces[shard.param] = {shard.first, end};
      steps[shard.param] = shard.step;
    }
  }

  mutable int calls = 0;
  mutable std::vector<std::string> names;     // of the params
  mutable std::vector<layout::Range> pieces;  // of each, what this rank updated
  mutable std::vector<int64_t> steps;         // of each, 0 where it was left out
};

// Plain gradient descent: a second step without a gradient of `c` leaves that parameter and its count as they are.
TEST(AnOptimizerOfTheWholeModel, UpdatesEveryParameterInOneCall) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    const std::vector<optim::ParamGroup> groups = {{.lr = 0.5}};
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      for (int stage = 0; stage <= 3; ++stage) {
        SCOPED_TRACE("stage " + std::to_string(stage));
        ThreeParams model(mixed_policy(stage, dtype), {}, world);
        const WholeModelDescent optimizer;
        model.run_backward();
        EXPECT_FALSE(sharded_step(*model.sharded, optimizer, groups, {.step = 1}).skipped);
        EXPECT_EQ(optimizer.names, (std::vector<std::string>{"a", "b", "c"}));
        for (size_t param = 0; param < kShapes.size(); ++param) {
          const layout::Range whole{0, numbers(param).numel()};
          const layout::Range own = stage == 0 ? whole : kPieces[param][static_cast<size_t>(world->rank())];
          EXPECT_EQ(optimizer.pieces[param].numel(), own.numel());
          EXPECT_TRUE(own.numel() == 0 || optimizer.pieces[param].begin == own.begin);
          EXPECT_EQ(optimizer.steps[param], own.numel() > 0 ? 1 : 0);
        }
        model.run_backward(/*used=*/2);
        sharded_step(*model.sharded, optimizer, groups, {.step = 2, .loss_scale = 4});
        EXPECT_EQ(optimizer.calls, 2);
        for (size_t param = 0; param < kShapes.size(); ++param) {
          const double taken = param < 2 ? 0.5 + 0.5 / 4 : 0.5;
          const at::Tensor want = numbers(param) - taken * mean_gradient(param, dtype);
          const at::Tensor got = full_value(*model.sharded, {0, param}, kWeight);
          // Numbers of up to 4 are taken from each other, in another order than here.
          EXPECT_TRUE(at::allclose(got, want, /*rtol=*/0, /*atol=*/2e-6)) << got << "\ninstead of\n" << want;
          EXPECT_TRUE(at::equal(model.whole(param), got.to(dtype))) << "the model does not see parameter " << param;
          EXPECT_EQ(model.sharded->units()[0]->steps()[param], param < 2 ? 2 : 1);
        }
      }
    }
  });
}

std::string refusal_of(ThreeParams& model) {
  const std::vector<optim::ParamGroup> groups = {{.lr = 0.5}};
  try {
    sharded_step(*model.sharded, WholeModelDescent(), groups, {.step = 1});
  } catch (const UnusedParameters& error) {
    return error.what();
  }
  return "";
}

TEST(AStepThatRefusesUnusedParameters, NamesThemOnEveryRankAndChangesNothing) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    for (const int stage : {1, 2}) {
      Policy policy = mixed_policy(stage, at::kFloat);
      policy.refuses_unused = true;
      ThreeParams model(policy, {}, world);
      model.run_backward(/*used=*/1);
      EXPECT_THAT(refusal_of(model), AllOf(HasSubstr("'b', 'c'"), Not(HasSubstr("'a'")), Not(HasSubstr("ranks")),
                                           HasSubstr("ignore_unused_parameters")));
      for (size_t param = 0; param < kShapes.size(); ++param) {
        EXPECT_TRUE(at::equal(full_value(*model.sharded, {0, param}, kWeight), numbers(param)));
      }
    }
  });
}

TEST(AStepThatRefusesUnusedParameters, SaysOnHowManyRanksOneWasMissing) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    Policy policy = mixed_policy(2, at::kFloat);
    policy.refuses_unused = true;
    ThreeParams model(policy, {}, world);
    model.run_backward(world->rank() == 1 ? 3 : 2);
    EXPECT_THAT(refusal_of(model), HasSubstr("for 'c' (on 2 of 3 ranks),"));
  });
}

// Over an accumulation each parameter needs a gradient once; a step that was taken begins anew.
TEST(AStepThatRefusesUnusedParameters, CountsFromTheStepBefore) {
  test::spawn_ranks(2, [](const auto& world) {
    Policy policy = policy_of_stage(2, at::kFloat, world->size());
    policy.refuses_unused = true;
    ThreeParams model(policy, {}, world);
    model.run_backward(/*used=*/1);
    model.run_backward();
    EXPECT_EQ(refusal_of(model), "");
    model.run_backward(/*used=*/2);
    EXPECT_THAT(refusal_of(model), HasSubstr("for 'c',"));
  });
}

// On rank 1, an update that ends only once the others have come to the same barrier.
class DescentWithALateRank : public WholeModelDescent {
 public:
  explicit DescentWithALateRank(comm::Group& world) : world_(world) {}
  void update(std::span<optim::ParamShard> shards, const optim::UpdateInput& input) const override {
    if (world_.rank() == 1) world_.barrier("steps of the others");
    WholeModelDescent::update(shards, input);
  }

 private:
  comm::Group& world_;
};

// A step that waited for the late rank's weights would wait until the timeout.
TEST(AStepThatPublishesLazily, DoesNotWaitForWeightsButForwardDoes) {
  test::spawn_ranks(kThreeRanks,
                    [](const auto& world) {
                      for (const int stage : {1, 2}) {
                        Policy policy = mixed_policy(stage, at::kFloat);
                        policy.publishes_lazily = true;
                        ThreeParams model(policy, {}, world);
                        const auto others = world->with_channel("test");
                        const DescentWithALateRank optimizer(*others);
                        model.run_backward();
                        const std::vector<optim::ParamGroup> groups = {{.lr = 0.5}};
                        sharded_step(*model.sharded, optimizer, groups, {.step = 1});
                        if (world->rank() != 1) others->barrier("steps of the others");
                        model.sharded->before_forward(0, {});
                        for (size_t param = 0; param < kShapes.size(); ++param) {
                          const at::Tensor want = numbers(param) - 0.5 * mean_gradient(param, at::kFloat);
                          EXPECT_TRUE(at::allclose(model.params[param].detach(), want, /*rtol=*/0, /*atol=*/2e-6))
                              << param;
                        }
                        model.sharded->after_forward(0, {});
                      }
                    },
                    {.timeout = std::chrono::seconds(10)});
}

// Without a forward in between.
TEST(AStepThatPublishesLazily, LeavesNothingOutOfDateBehindTheGuard) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    Policy policy = mixed_policy(1, at::kFloat);
    policy.publishes_lazily = true;
    ThreeParams model(policy, {}, world);
    const WholeModelDescent optimizer;
    model.run_backward();
    const std::vector<optim::ParamGroup> groups = {{.lr = 0.5}};
    sharded_step(*model.sharded, optimizer, groups, {.step = 1});
    const at::Tensor want = numbers(1) - 0.5 * mean_gradient(1, at::kFloat);
    EXPECT_TRUE(at::allclose(model.whole(1), want, /*rtol=*/0, /*atol=*/2e-6));
  });
}

}  // namespace
}  // namespace tessera::zero::sharded_step_test

#include "tessera/zero/sharded_model.h"

#include <gtest/gtest.h>

#include "tests/support/spawn_ranks.h"
#include "tests/zero/three_params.h"

namespace tessera::zero {
namespace {

using test::kThreeRanks;
using test::ThreeParams;

TEST(ShardedModel, KnowsItsParametersByTheirIdentity) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    for (const int stage : {0, 3}) {
      ThreeParams model(policy_of_stage(stage, at::kFloat, kThreeRanks), {}, world);
      const auto place = model.sharded->place_of(model.params[2]);
      ASSERT_TRUE(place);
      EXPECT_EQ(place->unit, 0u);
      EXPECT_EQ(place->param, 2u);
      EXPECT_FALSE(model.sharded->place_of(at::ones({3})));
      EXPECT_EQ(model.sharded->param_count(), 35 + 100 + 3);
    }
  });
}

TEST(ShardedModel, TakesParametersForAsLongAsItLives) {
  const auto world = comm::Group::alone();
  auto model = std::make_unique<ThreeParams>(policy_of_stage(1, at::kFloat, 1), OptimizerNeeds{}, world);
  const std::vector<at::Tensor> params = model->params;
  for (const at::Tensor& param : params) EXPECT_TRUE(ShardedModel::is_taken(param));
  model.reset();
  for (const at::Tensor& param : params) EXPECT_FALSE(ShardedModel::is_taken(param));
}

TEST(ShardedModel, TellsWhenSomebodyElseRunsTheBackward) {
  const auto world = comm::Group::alone();
  ThreeParams model(policy_of_stage(2, at::kFloat, 1), {}, world);
  std::string heard;
  model.sharded->set_unannounced_backward({.begins = [&] { heard += "begins ", model.sharded->begin_backward(); },
                                           .ends = [&] { heard += "ends", model.sharded->finish_backward(); }});
  model.sharded->before_forward(0, {});
  const at::Tensor loss = (model.params[0] * 2).sum();
  model.sharded->after_forward(0, {loss});
  loss.backward();
  EXPECT_EQ(heard, "begins ends");
  EXPECT_EQ(model.sharded->reducer().used(0), (std::vector<bool>{true, false, false}));
}

TEST(ShardedModel, GoesOnAfterAPassThatWasAbandoned) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    for (const int stage : {2, 3}) {
      ThreeParams model(policy_of_stage(stage, at::kFloat, kThreeRanks), {}, world);
      model.sharded->before_forward(0, {});
      model.sharded->abandon_pass();
      model.run_backward();
      const at::Tensor kept = model.sharded->reducer().reduced_shard(0).clone();
      model.run_backward();
      model.sharded->abandon_pass();  // with all gradients
      model.run_backward();
      EXPECT_TRUE(at::equal(model.sharded->reducer().reduced_shard(0), kept));
    }
  });
}

}  // namespace
}  // namespace tessera::zero

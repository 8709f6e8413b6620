#include "tessera/zero/sharded_model.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/zero/unreadable.h"
#include "tests/support/spawn_ranks.h"
#include "tests/zero/three_params.h"

namespace tessera::zero::sharded_model_test {
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

// 2 data-parallel ranks x 2 of another axis: rank = 2 * data + part. Rank 3's neighbour in the other part is rank 2.
TEST(ShardedModel, TakesOverWhatTheRanksOfOnePlaceWrite) {
  test::spawn_ranks(4, [](const auto& world) {
    const auto mesh =
        std::make_shared<comm::Mesh>(world, layout::MeshShape({{layout::kShardAxis, 2}, {layout::kTensorAxis, 2}}));
    const at::Tensor param = at::zeros({5}).requires_grad_(true);
    const auto model = ShardedModel::create({{"model", {{{.name = "w"}, param}}}}, {},
                                            policy_of_stage(3, at::kFloat, 2), mesh, nullptr);
    for (const int root : {0, 3}) {
      model->hold_all();
      param.detach().fill_(world->rank() + 10.0 * root);
      model->take_over(0, root);
      model->drop_all();
      model->hold_all();
      EXPECT_EQ(param.detach()[4].template item<double>(), root / 2 * 2 + world->rank() % 2 + 10.0 * root);
      model->drop_all();
    }
    EXPECT_THROW(model->take_over(0, 4), Error);
    EXPECT_THROW(model->take_over(0, -1), Error);
  });
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

TEST(ShardedModel, HoldsParametersWholeUntilTheLastHoldIsDropped) {
  test::spawn_ranks(test::kThreeRanks, [](const auto& world) {
    test::ThreeParams model(policy_of_stage(3, at::kFloat, test::kThreeRanks), {}, world);
    EXPECT_TRUE(is_unreadable(model.params[1]));
    model.sharded->hold_all();
    model.sharded->hold_all();
    EXPECT_TRUE(at::equal(model.params[1].detach(), test::numbers(1)));
    model.sharded->drop_all();
    EXPECT_TRUE(at::equal(model.params[0].detach(), test::numbers(0)));
    model.sharded->drop_all();
    EXPECT_TRUE(is_unreadable(model.params[0]));
  });
}

TEST(ShardedModel, HoldsNothingWhereParametersAreAlwaysWhole) {
  test::spawn_ranks(2, [](const auto& world) {
    test::ThreeParams model(policy_of_stage(2, at::kFloat, 2), {}, world);
    const int64_t sent = world->bytes_sent();
    model.sharded->hold_all();
    model.sharded->drop_all();
    EXPECT_EQ(world->bytes_sent(), sent);
    EXPECT_TRUE(at::equal(model.params[2].detach(), test::numbers(2)));
  });
}

}  // namespace
}  // namespace tessera::zero::sharded_model_test

#include "tessera/zero/unit_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/spawn_ranks.h"
#include "tests/zero/three_params.h"

namespace tessera::zero::unit_peers_test {
namespace {

using test::kPieces;
using test::kShapes;
using test::kThreeRanks;
using test::numbers;

// What this rank has of each parameter, its gradient numbers(param); at stage 0 all of it, cut as the others' are.
std::vector<optim::ParamShard> shards_of(int rank, bool whole) {
  std::vector<optim::ParamShard> shards;
  for (size_t param = 0; param < kShapes.size(); ++param) {
    for (int owner = 0; owner < kThreeRanks; ++owner) {
      const layout::Range range = kPieces[param][static_cast<size_t>(owner)];
      if (range.numel() == 0 || (!whole && owner != rank)) continue;
      const at::Tensor flat = numbers(param).view({-1});
      shards.push_back(
          {.grad = flat.narrow(0, range.begin, range.numel()).clone(), .param = param, .first = range.begin});
    }
  }
  return shards;
}

TEST(UnitPeers, AddUpEachParametersShardsWithTheSameBitsAtEveryStage) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    std::vector<std::vector<double>> found;
    for (const int stage : {0, 1, 3}) {
      test::ThreeParams model(policy_of_stage(stage, at::kFloat, kThreeRanks), {}, world);
      UnitPeers peers(*model.sharded->units()[0], *world);
      const auto shards = shards_of(world->rank(), stage == 0);
      std::vector<double> own;  // two values a shard: its sum, and its elements
      for (const optim::ParamShard& shard : shards) {
        own.push_back(shard.grad.sum().template item<double>());
        own.push_back(static_cast<double>(shard.grad.numel()));
      }
      found.push_back(peers.sum_by_param(shards, own, 2));
      ASSERT_EQ(found.back().size(), 6u);
      for (size_t param = 0; param < kShapes.size(); ++param) {
        EXPECT_NEAR(found.back()[2 * param], numbers(param).sum().template item<double>(), 1e-4);
        EXPECT_EQ(found.back()[2 * param + 1], numbers(param).numel());
      }
      EXPECT_EQ(found.back(), found.front());
    }
  });
}

TEST(UnitPeers, PutTheGradientsOfWholeParametersTogether) {
  test::spawn_ranks(kThreeRanks, [](const auto& world) {
    for (const int stage : {0, 1, 3}) {
      test::ThreeParams model(policy_of_stage(stage, at::kFloat, kThreeRanks), {}, world);
      UnitPeers peers(*model.sharded->units()[0], *world);
      const auto shards = shards_of(world->rank(), stage == 0);
      const std::vector<at::Tensor> wholes = peers.whole_grads(shards);
      for (size_t param = 0; param < kShapes.size(); ++param) {
        const bool has_some =
            std::any_of(shards.begin(), shards.end(), [&](const auto& s) { return s.param == param; });
        ASSERT_EQ(wholes[param].defined(), has_some);
        if (!has_some) continue;
        EXPECT_TRUE(at::equal(wholes[param], numbers(param).view({-1})));
      }
    }
  });
}

}  // namespace
}  // namespace tessera::zero::unit_peers_test

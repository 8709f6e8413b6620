#include "tessera/zero/wire_bytes.h"

#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include "tessera/zero/gradient_reducer.h"
#include "tests/support/spawn_ranks.h"
#include "tests/zero/zeropp.h"

namespace tessera::zero::wire_bytes_test {
namespace {

using test::kFourRanks;
using test::weights;

constexpr int64_t kShard = 4096;  // more than what an all-reduce sends to everybody

struct Step {
  int64_t sent, of_outer;
};

// A gather where there is one, a reduction and a publication.
Step one_step(const std::shared_ptr<comm::Group>& world, const Policy& policy, Unit& unit, const DataGroups& groups) {
  const auto count = [&] {
    return std::pair(world->bytes_sent() + groups.inner->bytes_sent() + groups.outer->bytes_sent(),
                     groups.outer->bytes_sent());
  };
  const auto [sent, outer] = count();
  unit.release();
  unit.start_gather();
  unit.finish_gather();
  GradientReducer reducer({&unit}, policy, {groups});
  for (size_t param = 0; param < unit.params().size(); ++param) {
    reducer.add(0, param, at::ones_like(unit.params()[param].tensor));
  }
  reducer.finish_backward();
  unit.start_publish();
  unit.finish_publish();
  const auto [sent_after, outer_after] = count();
  return {sent_after - sent, outer_after - outer};
}

TEST(WireBytes, AreThoseThatRanksSend) {
  test::spawn_ranks(kFourRanks, [](const auto& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      const DataGroups groups = DataGroups::of(*comm::Mesh::data_parallel(world), stage > 0);
      const Policy policy = policy_of_stage(stage, at::kFloat, kFourRanks);
      Unit unit("u", {{{.name = "w"}, weights(kShard).requires_grad_(true)}}, {.states = 2}, policy, groups, nullptr);
      const WireBytes bytes = wire_bytes(unit, policy);
      const int64_t share = 3 * kShard * 4;  // (n - 1) b s
      EXPECT_EQ(bytes.gather, stage == 3 ? share : 0);
      EXPECT_EQ(bytes.publish, stage == 1 || stage == 2 ? share : 0);
      EXPECT_EQ(bytes.reduce, stage == 0 ? 2 * share : share);
      // In one level a group's own bytes are the world's.
      EXPECT_EQ(one_step(world, policy, unit, groups).sent, 2 * (bytes.gather + bytes.publish + bytes.reduce)) << stage;
    }
  });
}

TEST(WireBytes, OfParametersThatPersistAreThoseThatRanksSend) {
  test::spawn_ranks(kFourRanks, [](const auto& world) {
    const DataGroups groups = DataGroups::of(*comm::Mesh::data_parallel(world), true);
    const Policy policy = policy_of_stage(3, at::kFloat, kFourRanks);
    constexpr int64_t kSmall = 96;  // of the last rank
    for (const bool all : {false, true}) {
      NamedParam large{{.name = "w"}, weights(kShard - kSmall / kFourRanks).requires_grad_(true)};
      NamedParam small{{.name = "v"}, weights(kSmall / kFourRanks).requires_grad_(true)};
      large.persists = all;
      small.persists = true;
      Unit unit("u", {large, small}, {.states = 2}, policy, groups, nullptr);
      const int64_t numel = unit.layout().numel();
      const WireBytes bytes = wire_bytes(unit, policy);
      EXPECT_EQ(bytes.gather, all ? 0 : 3 * numel / kFourRanks * 4);
      EXPECT_EQ(bytes.publish, 3 * 4 * (all ? numel / kFourRanks : kSmall));
      EXPECT_EQ(one_step(world, policy, unit, groups).sent, 2 * (bytes.gather + bytes.publish + bytes.reduce)) << all;
    }
  });
}

TEST(WireBytes, OfZeroPlusPlusAreThoseThatRanksSend) {
  test::spawn_ranks(kFourRanks, [](const auto& world) {
    for (const Traffic& traffic :
         {Traffic{.secondary_shards = true}, Traffic{.quantized_gradients = true},
          Traffic{.secondary_shards = true, .quantized_weights = true},
          Traffic{.secondary_shards = true, .quantized_weights = true, .quantized_gradients = true}}) {
      const DataGroups groups = test::two_levels(world);
      const Policy policy = test::stage3(traffic);
      Unit unit("u", {{{.name = "w"}, weights(kShard).requires_grad_(true)}}, {.states = 2}, policy, groups, nullptr);
      const WireBytes bytes = wire_bytes(unit, policy);
      const Step step = one_step(world, policy, unit, groups);
      EXPECT_EQ(step.sent, bytes.gather + bytes.publish + bytes.reduce);
      if (traffic.secondary_shards && traffic.quantized_gradients) {
        EXPECT_EQ(step.of_outer, bytes.of_outer);
      }
      // Plain stage 3 sends 2 (n - h) b s to other inner groups in a gather and a reduction.
      EXPECT_LT(bytes.of_outer, 2 * 2 * kShard * 4);
    }
  });
}

}  // namespace
}  // namespace tessera::zero::wire_bytes_test

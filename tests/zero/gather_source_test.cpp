#include "tessera/zero/gather_source.h"

#include <gtest/gtest.h>

#include "tessera/zero/unit.h"
#include "tessera/zero/wire_bytes.h"
#include "tests/support/spawn_ranks.h"
#include "tests/zero/zeropp.h"

namespace tessera::zero::gather_source_test {
namespace {

using test::coarse;
using test::kFourRanks;
using test::stage3;
using test::weights;

constexpr int64_t kShard = 320;  // a block and a part of one

Unit unit_of(const DataGroups& groups, const Policy& policy) {
  return {"u", {{{.name = "w"}, weights(kShard).requires_grad_(true)}}, {.states = 2}, policy, groups, nullptr};
}

at::Tensor gathered(Unit& unit, Unit::Values values = Unit::Values::kOfPasses) {
  unit.start_gather(values);
  unit.finish_gather();
  at::Tensor result = unit.params()[0].tensor.detach().to(at::kFloat).clone();
  unit.release();
  return result;
}

// The optimizer's part: each rank writes new values into what it owns.
void change(Unit& unit, const DataGroups& groups, double phase) {
  groups.all->settle();
  unit.master().store(weights(kShard, phase).narrow(0, unit.owned().begin, unit.owned().numel()));
  unit.refresh_compute();
  unit.start_publish();
  unit.finish_publish();
}

struct Sent {
  int64_t inner, outer, shard;
};

Sent sent(const DataGroups& groups) {
  return {groups.inner->bytes_sent(), groups.outer->bytes_sent(), groups.shard->bytes_sent()};
}

TEST(GatherSource, SecondaryShardsAreGatheredInTheInnerGroupAndGoRoundTheOuterOneOnceAStep) {
  test::spawn_ranks(kFourRanks, [](const auto& world) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const DataGroups groups = test::two_levels(world);
      const Policy policy = stage3({.secondary_shards = true}, dtype);
      Unit unit = unit_of(groups, policy);
      unit.release();
      const WireBytes bytes = wire_bytes(unit, policy);
      for (int step = 0; step < 3; ++step) {
        const Sent before = sent(groups);
        for (int pass = 0; pass < 2; ++pass) {
          EXPECT_TRUE(at::equal(gathered(unit), weights(kShard, step).to(dtype).to(at::kFloat))) << step;
        }
        const Sent passes = sent(groups);
        EXPECT_EQ(passes.inner - before.inner, 2 * bytes.gather);
        EXPECT_EQ(passes.outer - before.outer, 0);
        change(unit, groups, step + 1);
        EXPECT_EQ(sent(groups).outer - passes.outer, bytes.publish);
        EXPECT_EQ(sent(groups).shard, before.shard);
      }
      const int64_t element = static_cast<int64_t>(c10::elementSize(dtype));
      EXPECT_EQ(bytes.gather, 2 * kShard * element);                    // (h - 1) n/h b s
      EXPECT_EQ(bytes.publish, kShard * element);                       // (n/h - 1) b s
      EXPECT_EQ(bytes.of_outer - bytes.publish, 2 * kShard * element);  // … and of the reduction, (n - h) b s
      const int64_t rest = dtype == at::kFloat ? 0 : 4;                 // master weights
      EXPECT_EQ(unit.model_state_bytes().memory, kShard * (2 * element + rest + 8 + element));
    }
  });
}

TEST(GatherSource, QuantizedWeightsComeOutAlikeOnEveryRankAndStayExactWhereTheyAreStored) {
  test::spawn_ranks(kFourRanks, [](const auto& world) {
    for (const bool secondary : {false, true}) {
      const DataGroups groups = test::two_levels(world);
      const Policy policy = stage3({.secondary_shards = secondary, .quantized_weights = true});
      Unit unit = unit_of(groups, policy);
      unit.release();
      const WireBytes bytes = wire_bytes(unit, policy);
      const int64_t piece = kShard + 2 * 4;  // two blocks' scales
      EXPECT_EQ(bytes.gather, secondary ? 2 * piece : 3 * piece);
      EXPECT_EQ(bytes.publish, secondary ? piece : 0);
      for (int step = 0; step < 2; ++step) {
        const Sent before = sent(groups);
        EXPECT_TRUE(at::equal(gathered(unit), coarse(weights(kShard, step), 8))) << step;
        EXPECT_FALSE(at::equal(gathered(unit), weights(kShard, step)));
        const Sent passes = sent(groups);
        EXPECT_EQ(passes.inner + passes.shard - before.inner - before.shard, 2 * bytes.gather);
        EXPECT_TRUE(at::equal(gathered(unit, Unit::Values::kStored), weights(kShard, step)));
        EXPECT_TRUE(
            at::equal(unit.stored_weights().load(), weights(kShard, step).narrow(0, world->rank() * kShard, kShard)));
        change(unit, groups, step + 1);
        EXPECT_EQ(sent(groups).outer - passes.outer, bytes.publish);
      }
      EXPECT_EQ(unit.model_state_bytes().memory, kShard * 4 * (1 + 2 + 1) + (secondary ? 2 : 1) * piece);
    }
  });
}

TEST(GatherSource, TakesOverWhatOneRankWrites) {
  test::spawn_ranks(kFourRanks, [](const auto& world) {
    for (const bool quantized : {false, true}) {
      const DataGroups groups = test::two_levels(world);
      Unit unit = unit_of(groups, stage3({.secondary_shards = true, .quantized_weights = quantized}));
      unit.release();
      unit.start_gather(Unit::Values::kStored);
      unit.finish_gather();
      if (world->rank() == 1) unit.params()[0].tensor.detach().copy_(weights(kShard, 5));
      unit.take_over(1);
      unit.release();
      const at::Tensor want = weights(kShard, 5);
      EXPECT_TRUE(at::equal(gathered(unit), quantized ? coarse(want, 8) : want));
    }
  });
}

TEST(GatherSource, BytesAreGatheredAsTheyAre) {
  const auto world = comm::Group::alone();
  Policy policy = policy_of_stage(3, at::kByte, 1);
  policy.traffic.quantized_weights = true;
  EXPECT_FALSE(GatherSource::is_for(policy));
  policy.compute_dtype = at::kFloat;
  EXPECT_TRUE(GatherSource::is_for(policy));
}

}  // namespace
}  // namespace tessera::zero::gather_source_test

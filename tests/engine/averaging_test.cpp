// That the options which change no number are on all the same: the collectives that they make, counted by the timeline,
// and the rounding that they choose. precision_test.cpp shows that the numbers stay.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tessera/base/trace.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/toy_models.h"
#include "tests/support/live_bytes.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::averaging_test {
namespace {

using nlohmann::json;
using test::kWidth;
using test::ToyInput;

config::DsConfig parsed(int stage, const json& change, int ranks) {
  json config = {{"train_micro_batch_size_per_gpu", 2},
                 {"gradient_clipping", 0.0},
                 {"zero_optimization", {{"stage", stage}}},
                 {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.02}}}}}};
  config.merge_patch(change);
  return config::parse_ds_config(config, "the test", {.data_parallel_size = ranks});
}

struct Backward {
  std::vector<TraceEvent> reductions, gathers;  // in the order of their ends
  size_t units = 0;
};

// Of the second backward at stage 2, where parameters are whole, so that every collective is one of gradients.
Backward traced_backward(const json& change, const std::shared_ptr<comm::Group>& world) {
  const auto model = std::make_shared<test::ThreeBlocks>();
  const auto engine = initialize(model, parsed(2, change, world->size()), {.world = world});
  const auto pass = [&] {
    ToyInput input{.x = at::ones({2, kWidth}) * (1 + world->rank())};
    engine->backward(engine->call([](test::ThreeBlocks& m, const ToyInput& in) { return m.loss(in); }, input));
  };
  pass();
  engine->step();
  start_tracing();
  pass();
  Backward seen{.units = engine->sharded_model().units().size()};
  for (TraceEvent& event : stop_tracing().events) {
    if (event.lane == TraceLane::kReduce) seen.reductions.push_back(event);
    if (event.lane == TraceLane::kGather) seen.gathers.push_back(event);
  }
  return seen;
}

bool overlap(const std::vector<TraceEvent>& events) {
  for (size_t i = 1; i < events.size(); ++i) {
    if (events[i].begin < events[i - 1].end) return true;
  }
  return false;
}

TEST(Averaging, ReduceScatterMovesEachGradientOnceAndWithoutItTheSumComesBackWhole) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    const Backward with = traced_backward(json::object(), world);
    ASSERT_GE(with.units, 3);
    EXPECT_EQ(with.reductions.size(), with.units);
    EXPECT_EQ(with.gathers.size(), 0);
    const Backward without = traced_backward({{"zero_optimization", {{"reduce_scatter", false}}}}, world);
    EXPECT_EQ(without.gathers.size(), without.units);
  });
}

TEST(Averaging, OverlapStartsAReductionBeforeTheLastOneIsOver) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    EXPECT_TRUE(overlap(traced_backward(json::object(), world).reductions));
    EXPECT_FALSE(overlap(traced_backward({{"zero_optimization", {{"overlap_comm", false}}}}, world).reductions));
  });
}

// A reduction of messages holds the parts of all ranks for one piece.
TEST(Averaging, BucketSizeBoundsTheMemoryOfAReduction) {
  constexpr int64_t kNumel = 1 << 16;
  test::spawn_ranks(
      2,
      [](const std::shared_ptr<comm::Group>& world) {
        const auto peak_with = [&](int64_t bucket) {
          at::Tensor full = at::ones({kNumel}), shard = at::empty({kNumel / 2});
          const auto bytes = std::make_shared<test::LiveBytes>();
          const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
          world->start_reduce_scatter(shard, full, 1, "gradients", bucket).finish();
          EXPECT_EQ(shard.min().item<float>(), 2);
          return bytes->peak;
        };
        constexpr int64_t kBucket = kNumel / 8;
        EXPECT_GE(peak_with(kNumel), kNumel / 2 * int64_t{sizeof(float)});  // the other rank's part at least
        EXPECT_LE(peak_with(kBucket), 2 * kBucket * int64_t{sizeof(float)});
        const auto engine = initialize(
            std::make_shared<test::ThreeBlocks>(),
            parsed(2, {{"zero_optimization", {{"reduce_bucket_size", kBucket}}}}, world->size()), {.world = world});
        EXPECT_EQ(engine->sharded_model().policy().reduction.reduce_bucket_size, kBucket);
      },
      {.backend = "gloo"});
}

// One weight whose gradient is the smallest number that fp16 has above 0: halved before it travels, it is 0.
class Least : public torch::nn::Module {
 public:
  Least() { weight = register_parameter("weight", at::ones({kWidth})); }
  at::Tensor forward() { return (weight * kSmallest).sum(); }
  static constexpr double kSmallest = 0x1p-24;
  at::Tensor weight;
};

TEST(Averaging, PrescaleAndPredivideDivideBeforeGradientsTravel) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    const auto norm_with = [&](json change) {
      change["communication_data_type"] = "fp16";
      const auto engine = initialize(std::make_shared<Least>(), parsed(2, change, world->size()), {.world = world});
      engine->backward(engine->forward());
      engine->step();
      return engine->get_global_grad_norm();
    };
    EXPECT_NEAR(norm_with(json::object()), Least::kSmallest * std::sqrt(kWidth), 1e-12);
    EXPECT_EQ(norm_with({{"prescale_gradients", true}}), 0);  // a tie that rounds to even
    EXPECT_EQ(norm_with({{"gradient_predivide_factor", 2.0}}), 0);
  });
}

}  // namespace
}  // namespace tessera::averaging_test

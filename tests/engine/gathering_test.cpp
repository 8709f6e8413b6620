// Which units are whole at which moment of a step, at stage 3: DeepSpeed's stage3_max_live_parameters,
// stage3_max_reuse_distance, stage3_prefetch_bucket_size and stage3_param_persistence_threshold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/toy_models.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::gathering_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using zero::UnitState;

constexpr int64_t kBlock = 192;  // elements: 144 and 12, each padded to a multiple of 32
constexpr int64_t kPlenty = 1000 * kBlock;

// Four blocks; calls `look` before each and after the last.
class Watched : public torch::nn::Module {
 public:
  Watched() {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<test::Block>(10 * i)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (const auto& block : blocks) {
      look();
      y = (*block)(y);
    }
    look();
    return test::mean_square(y);
  }
  std::vector<std::shared_ptr<test::Block>> blocks;
  std::function<void()> look = [] {};
};

// A character a block: whole, coming, or sharded.
std::string states_of(Engine& engine) {
  std::string text;
  for (const auto& unit : engine.sharded_model().units()) {
    EXPECT_EQ(unit->layout().numel(), kBlock);
    text += unit->state() == UnitState::kGathered ? 'W' : unit->state() == UnitState::kGathering ? 'c' : '-';
  }
  return text;
}

struct Seen {
  std::vector<std::string> forward;
  std::string after_backward, after_step;
};

// Of the second step, when the order is known. Nothing is whole but what the keys given ask for.
Seen second_step(const json& keys, const std::shared_ptr<comm::Group>& world) {
  json config = {{"train_micro_batch_size_per_gpu", 2},
                 {"zero_optimization",
                  {{"stage", 3},
                   {"stage3_max_live_parameters", kPlenty},
                   {"stage3_max_reuse_distance", 0},
                   {"stage3_prefetch_bucket_size", 0},
                   {"stage3_param_persistence_threshold", 0}}},
                 {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}}};
  config["zero_optimization"].merge_patch(keys);
  const auto model = std::make_shared<Watched>();
  const auto engine = initialize(
      model, config::parse_ds_config(config, "the test", {.data_parallel_size = world->size()}), {.world = world});
  Seen seen;
  model->look = [&] { seen.forward.push_back(states_of(*engine)); };
  for (int step = 0; step < 2; ++step) {
    seen.forward.clear();
    engine->backward(engine->forward(at::ones({2, test::kWidth}) * (step + world->rank())));
    seen.after_backward = states_of(*engine);
    engine->step();
    seen.after_step = states_of(*engine);
  }
  return seen;
}

Seen second_step(const json& keys) { return second_step(keys, comm::Group::alone()); }

TEST(Gathering, OnlyWhatIsInUseWhereNothingElseIsAskedFor) {
  const Seen seen = second_step(json::object());
  EXPECT_THAT(seen.forward, ElementsAre("----", "----", "----", "----", "----"));
  EXPECT_EQ(seen.after_backward, "----");
}

TEST(Gathering, KeepsWhatIsUsedAgainWithinTheReuseDistance) {
  // Four blocks are used between the forward of block 1 and its backward, two for block 2, none for block 3.
  const Seen seen = second_step({{"stage3_max_reuse_distance", 3 * kBlock}});
  EXPECT_THAT(seen.forward, ElementsAre("----", "----", "----", "--W-", "--WW"));
  EXPECT_EQ(seen.after_backward, "----");
}

TEST(Gathering, KeepsNoMoreThanMayLive) {
  // Room is made by what is used last.
  const Seen seen = second_step({{"stage3_max_reuse_distance", kPlenty}, {"stage3_max_live_parameters", 2 * kBlock}});
  EXPECT_THAT(seen.forward, ElementsAre("----", "W---", "WW--", "-WW-", "--WW"));
}

TEST(Gathering, OfWhatIsInUseMayExceedTheLimit) {
  const Seen seen = second_step({{"stage3_max_reuse_distance", kPlenty}, {"stage3_max_live_parameters", kBlock / 2}});
  EXPECT_THAT(seen.forward, ElementsAre("----", "----", "----", "----", "----"));
}

TEST(Gathering, OfSmallUnitsPersistsUntilAStepChangesThem) {
  const Seen seen = second_step({{"stage3_param_persistence_threshold", kBlock}});
  EXPECT_THAT(seen.forward, ElementsAre("----", "W---", "WW--", "WWW-", "WWWW"));
  EXPECT_EQ(seen.after_backward, "WWWW");
  EXPECT_EQ(seen.after_step, "----");
}

TEST(Gathering, PersistsAsFarAsTheModelsThresholdGoes) {
  const Seen seen =
      second_step({{"stage3_param_persistence_threshold", kBlock}, {"stage3_model_persistence_threshold", 2 * kBlock}});
  EXPECT_EQ(seen.after_backward, "WW--");
}

TEST(Gathering, OfOneRankIsNotAheadAsNothingTravels) {
  const Seen seen = second_step({{"stage3_prefetch_bucket_size", kPlenty}});
  EXPECT_THAT(seen.forward, ElementsAre("----", "----", "----", "----", "----"));
}

TEST(Gathering, OfSeveralRanksIsAsFarAheadAsTheBucketGoes) {
  test::spawn_ranks(2, [](const auto& world) {
    const Seen one = second_step({{"stage3_prefetch_bucket_size", kBlock}}, world);
    EXPECT_THAT(one.forward, ElementsAre("c---", "-c--", "--c-", "---c", "--c-"));  // backward turns at block 3
    EXPECT_EQ(one.after_backward, "----");
    const Seen two = second_step({{"stage3_prefetch_bucket_size", 2 * kBlock}}, world);
    EXPECT_THAT(two.forward, ElementsAre("cc--", "-cc-", "--cc", "---c", "-cc-"));
  });
}

TEST(Gathering, AheadMakesRoomOfWhatIsUsedLaterOnly) {
  test::spawn_ranks(2, [](const auto& world) {
    const Seen seen = second_step({{"stage3_max_reuse_distance", kPlenty},
                                   {"stage3_prefetch_bucket_size", kBlock},
                                   {"stage3_max_live_parameters", 2 * kBlock}},
                                  world);
    EXPECT_THAT(seen.forward, ElementsAre("c---", "Wc--", "-Wc-", "--Wc", "--WW"));
  });
}

}  // namespace
}  // namespace tessera::gathering_test

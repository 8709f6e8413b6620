// Saving and loading through the engine: any number of ranks and any stage may load what any other saved.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tessera/engine/engine.h"
#include "tessera/zero/gathered.h"
#include "tests/engine/toy_models.h"
#include "tests/support/spawn_ranks.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using test::outcomes_of_ranks;
using test::spawn_ranks;
using test::ToyInput;
using test::ToyModel;
using testing::HasSubstr;

config::DsConfig config_of(int stage, int world_size) {
  const nlohmann::json json = {{"train_batch_size", 12},
                               {"train_micro_batch_size_per_gpu", 12 / world_size},
                               {"zero_optimization", {{"stage", stage}}},
                               {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}, {"weight_decay", 0.1}}}}}};
  return config::parse_ds_config(json, "the test", {.data_parallel_size = world_size});
}

// The same twelve rows whatever the number of ranks.
ToyInput share_of(int step, const comm::Communicator& world) {
  const at::Tensor all = at::cos(at::arange(12 * test::kWidth, at::kFloat) * 0.3 + step).view({12, test::kWidth});
  const int64_t rows = 12 / world.size();
  return {.x = all.narrow(0, world.rank() * rows, rows)};
}

template <class Model>
void take_steps(ModelEngine<Model>& engine, int count) {
  for (int i = 0; i < count; ++i) {
    const ToyInput input = share_of(static_cast<int>(engine.global_steps()), engine.world());
    engine.backward(engine.call([](Model& m, const ToyInput& in) { return m.loss(in); }, input));
    engine.step();
  }
}

template <class Model>
std::vector<at::Tensor> weights_of(ModelEngine<Model>& engine) {
  const zero::Gathered whole(engine.sharded_model());
  std::vector<at::Tensor> weights;
  for (const auto& item : engine.module().named_parameters()) weights.push_back(item.value().detach().clone());
  return weights;
}

class Checkpoint : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tessera_checkpoint_" + std::to_string(getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void save_with(int world_size, int stage, int steps) {
    spawn_ranks(world_size, [&](std::shared_ptr<comm::Communicator> world) {
      const auto engine =
          initialize(std::make_shared<test::Frozen>(), config_of(stage, world->size()), {.world = world});
      take_steps(*engine, steps);
      engine->save_checkpoint(folder_.string(), "", {{"note", "hello"}});
    });
  }

  std::string load_error(const std::function<void(std::shared_ptr<comm::Communicator>)>& body, int world_size = 1) {
    std::string all;
    for (const auto& outcome : outcomes_of_ranks(world_size, body)) {
      EXPECT_EQ(outcome.exit_code, 1);
      all += outcome.output;
    }
    return all;
  }

  fs::path folder_;
};

// The weights after three steps, a save, a load and two more steps are those after five steps.
TEST_F(Checkpoint, IsLoadedByAnyStageAndAnyNumberOfRanks) {
  for (const auto& [save_ranks, save_stage] : {std::pair{2, 3}, {3, 1}, {1, 0}}) {
    fs::remove_all(folder_);
    save_with(save_ranks, save_stage, 3);
    for (const int load_ranks : {1, 2, 3}) {
      spawn_ranks(load_ranks, [&](std::shared_ptr<comm::Communicator> world) {
        for (const int stage : {0, 1, 2, 3}) {
          const auto fresh =
              initialize(std::make_shared<test::Frozen>(), config_of(stage, world->size()), {.world = world});
          take_steps(*fresh, 5);
          const auto resumed =
              initialize(std::make_shared<test::Frozen>(), config_of(stage, world->size()), {.world = world});
          const auto loaded = resumed->load_checkpoint(folder_.string());
          ASSERT_TRUE(loaded.has_value());
          EXPECT_EQ(loaded->client_state.at("note"), "hello");
          EXPECT_EQ(resumed->global_steps(), 3);
          take_steps(*resumed, 2);
          const auto got = weights_of(*resumed);
          const auto want = weights_of(*fresh);
          for (size_t i = 0; i < want.size(); ++i) {
            EXPECT_TRUE(at::allclose(got[i], want[i], 1e-5, 1e-6))
                << "saved by " << save_ranks << " at stage " << save_stage << ", loaded at stage " << stage;
            if (save_ranks == world->size()) {
              EXPECT_TRUE(at::equal(got[i], want[i])) << "not the same bits";
            }
          }
        }
      });
    }
  }
}

TEST_F(Checkpoint, OfAnEmptyFolderIsNothing) {
  const auto engine = initialize(std::make_shared<test::ThreeBlocks>(), config_of(0, 1));
  EXPECT_FALSE(engine->load_checkpoint(folder_.string()).has_value());
}

TEST_F(Checkpoint, OfAnotherModelIsRefusedByName) {
  save_with(1, 0, 1);
  const std::string error = load_error([&](std::shared_ptr<comm::Communicator> world) {
    initialize(std::make_shared<test::TiedWeights>(), config_of(0, 1), {.world = world})
        ->load_checkpoint(folder_.string());
  });
  EXPECT_THAT(error, HasSubstr("of another model"));
  EXPECT_THAT(error, HasSubstr("it lacks first.weight"));
}

TEST_F(Checkpoint, ThatIsTornIsRefusedOnEveryRank) {
  save_with(2, 2, 1);
  const fs::path shard = folder_ / "global_step1" / "shard-00001-of-00002.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 4);
  const std::string error = load_error(
      [&](std::shared_ptr<comm::Communicator> world) {
        initialize(std::make_shared<test::Frozen>(), config_of(2, 2), {.world = world})
            ->load_checkpoint(folder_.string());
      },
      2);
  EXPECT_THAT(error, HasSubstr("shard-00001-of-00002.safetensors has"));
}

TEST_F(Checkpoint, ThatCannotBeWrittenLeavesTheEarlierOneAsItWas) {
  save_with(2, 1, 1);
  spawn_ranks(2, [&](std::shared_ptr<comm::Communicator> world) {
    const auto engine = initialize(std::make_shared<test::Frozen>(), config_of(1, 2), {.world = world});
    ASSERT_TRUE(engine->load_checkpoint(folder_.string()).has_value());
    EXPECT_THROW(engine->save_checkpoint("/proc/nowhere"), Error);
    take_steps(*engine, 1);
    EXPECT_TRUE(engine->load_checkpoint(folder_.string()).has_value());
    EXPECT_EQ(engine->global_steps(), 1);
  });
}

}  // namespace
}  // namespace tessera

// Saving and loading through the engine: any number of ranks and any stage may load what any other saved.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/engine/engine.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using test::config_of;
using test::outcomes_of_ranks;
using test::spawn_ranks;
using test::take_steps;
using test::weights_of;
using testing::HasSubstr;

class Checkpoint : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tessera_checkpoint_" + std::to_string(getpid()));
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void save_with(int world_size, int stage, int steps) {
    spawn_ranks(world_size, [&](std::shared_ptr<comm::Group> world) {
      const auto engine =
          initialize(std::make_shared<test::Frozen>(), config_of(stage, world->size()), {.world = world});
      take_steps(*engine, steps);
      engine->save_checkpoint(folder_.string(), "", {{"note", "hello"}});
    });
  }

  std::string load_error(const std::function<void(std::shared_ptr<comm::Group>)>& body, int world_size = 1) {
    std::string all;
    for (const auto& outcome : outcomes_of_ranks(world_size, body)) {
      EXPECT_EQ(outcome.exit_code, 1);
      all += outcome.output;
    }
    return all;
  }

  fs::path folder_;
};

TEST_F(Checkpoint, OfAnEmptyFolderIsNothing) {
  const auto engine = initialize(std::make_shared<test::ThreeBlocks>(), config_of(0, 1));
  EXPECT_FALSE(engine->load_checkpoint(folder_.string()).has_value());
}

TEST_F(Checkpoint, OfAnotherModelIsRefusedByName) {
  save_with(1, 0, 1);
  const std::string error = load_error([&](std::shared_ptr<comm::Group> world) {
    initialize(std::make_shared<test::TiedWeights>(), config_of(0, 1), {.world = world})
        ->load_checkpoint(folder_.string());
  });
  EXPECT_THAT(error, HasSubstr("belongs to another model"));
  EXPECT_THAT(error, HasSubstr("it lacks first.weight"));
}

TEST_F(Checkpoint, ThatIsTornIsRefusedOnEveryRank) {
  save_with(2, 2, 1);
  const fs::path shard = folder_ / "global_step1" / "shard-00001-of-00002.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 4);
  const std::string error = load_error(
      [&](std::shared_ptr<comm::Group> world) {
        initialize(std::make_shared<test::Frozen>(), config_of(2, 2), {.world = world})
            ->load_checkpoint(folder_.string());
      },
      2);
  EXPECT_THAT(error, HasSubstr("shard-00001-of-00002.safetensors has"));
}

TEST_F(Checkpoint, ThatCannotBeWrittenLeavesTheEarlierOneAsItWas) {
  save_with(2, 1, 1);
  spawn_ranks(2, [&](std::shared_ptr<comm::Group> world) {
    const auto engine = initialize(std::make_shared<test::Frozen>(), config_of(1, 2), {.world = world});
    ASSERT_TRUE(engine->load_checkpoint(folder_.string()).has_value());
    EXPECT_THROW(engine->save_checkpoint("/proc/nowhere"), Error);
    take_steps(*engine, 1);
    EXPECT_TRUE(engine->load_checkpoint(folder_.string()).has_value());
    EXPECT_EQ(engine->global_steps(), 1);
  });
}

}  // namespace
}  // namespace tessera::checkpoint_test

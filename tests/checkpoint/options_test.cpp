// What a save may leave out and a load may pass over; where and how long checkpoints are kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/checkpoint/inspect.h"
#include "tessera/checkpoint/retention.h"
#include "tessera/storage/safetensors.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::options_test {
namespace {

namespace fs = std::filesystem;
using test::config_of;
using test::Frozen;
using test::take_steps;
using test::ThreeBlocks;
using test::weights_of;
using testing::AllOf;
using testing::HasSubstr;

class CheckpointOptions : public testing::Test {
 protected:
  template <class Model>
  auto make(int stage = 0) const {
    return initialize(std::make_shared<Model>(), config_of(stage, 1), {.world = comm::Group::alone()});
  }
  template <class Action>
  static std::string error_of(Action action) {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  template <class A, class B>
  static void expect_same_weights(A& a, B& b) {
    const auto got = weights_of(a), want = weights_of(b);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  }
  fs::path path(const std::string& name) const { return folder_.path() / name; }

  test::TemporaryFolder folder_;
};

TEST_F(CheckpointOptions, InTheBackgroundTheBytesAreThoseOfTheMomentOfTheSave) {
  const auto engine = make<Frozen>(3);
  take_steps(*engine, 2);
  engine->save_checkpoint(path("now"));
  engine->save_checkpoint(path("beside"), "", nlohmann::json::object(), {.in_background = true});
  take_steps(*engine, 3);
  engine->save_checkpoint(path("beside"), "", nlohmann::json::object(), {.in_background = true});  // the buffer again
  take_steps(*engine, 1);
  engine->finish_saving();
  EXPECT_TRUE(checkpoint::compare(path("now"), path("beside") / "global_step2").empty());
  EXPECT_EQ(checkpoint::read_latest(path("beside")), "global_step5");
  EXPECT_FALSE(checkpoint::compare(path("now"), path("beside")).empty());
}

TEST_F(CheckpointOptions, WeightsAloneCanBeSavedAndLoaded) {
  const auto engine = make<ThreeBlocks>();
  take_steps(*engine, 3);
  engine->save_checkpoint(path("all"));
  engine->save_checkpoint(path("weights"), "", nlohmann::json::object(), {.optimizer_states = false});
  const auto bytes = [&](const char* name) {
    return checkpoint::total_bytes(checkpoint::read_manifest(checkpoint::resolve(path(name))));
  };
  EXPECT_LT(bytes("weights"), bytes("all") / 2);

  for (const char* const from : {"all", "weights"}) {
    const auto fresh = make<ThreeBlocks>(2);
    ASSERT_TRUE(fresh->load_checkpoint(path(from), "", {.weights_only = true}));
    expect_same_weights(*fresh, *engine);
    EXPECT_EQ(fresh->global_steps(), 0);
    for (const zero::StateTensor& state : fresh->sharded_model().units().front()->optimizer_state()) {
      EXPECT_TRUE(state.load().eq(0).all().item<bool>());
    }
  }
  EXPECT_THAT(error_of([&] { make<ThreeBlocks>()->load_checkpoint(path("weights")); }),
              HasSubstr("no optimizer state for block0.weight"));
  const auto counted = make<ThreeBlocks>();
  counted->load_checkpoint(path("weights"), "", {.optimizer_states = false});
  EXPECT_EQ(counted->global_steps(), 3);
}

TEST_F(CheckpointOptions, TrainableParametersAloneCanBeSavedAndLoaded) {
  const auto engine = make<Frozen>();
  take_steps(*engine, 3);
  engine->save_checkpoint(path("adapter"), "", nlohmann::json::object(), {.trainable_only = true});
  const auto manifest = checkpoint::read_manifest(checkpoint::resolve(path("adapter")));
  EXPECT_FALSE(manifest.tensors.contains("blocks.0.weight"));
  for (const auto& [name, tensor] : manifest.tensors) EXPECT_EQ(name.find("block0"), std::string::npos) << name;
  const auto fresh = make<Frozen>(3);
  ASSERT_TRUE(fresh->load_checkpoint(path("adapter")));
  expect_same_weights(*fresh, *engine);
  EXPECT_EQ(take_steps(*fresh, 3), take_steps(*engine, 3));
}

// A model with a part that the other lacks.
class WithHead : public ThreeBlocks {
 public:
  WithHead() { head = register_module("head", std::make_shared<test::Block>(77)); }
  at::Tensor loss(const test::ToyInput& input) override {
    at::Tensor y = input.x;
    for (const auto& block : blocks) y = run(block, y);
    return test::mean_square(run(head, y));
  }
  std::shared_ptr<test::Block> head;
};

// The same blocks under other names.
class Renamed : public test::ToyModel {
 public:
  Renamed() { body = register_module("body", std::make_shared<ThreeBlocks>()); }
  at::Tensor loss(const test::ToyInput& input) override { return body->loss(input); }
  std::shared_ptr<ThreeBlocks> body;
};

TEST_F(CheckpointOptions, NotStrictPassesOverWhatOneSideLacks) {
  const auto small = make<ThreeBlocks>();
  take_steps(*small, 3);
  small->save_checkpoint(path("small"));
  const auto large = make<WithHead>();
  EXPECT_THAT(error_of([&] { large->load_checkpoint(path("small")); }), HasSubstr("it lacks head.weight"));
  ASSERT_TRUE(large->load_checkpoint(path("small"), "", {.strict = false, .weights_only = true}));
  const auto want = weights_of(*small), got = weights_of(*large);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  EXPECT_TRUE(at::equal(large->module().head->weight, test::Block(77).weight));

  large->save_checkpoint(path("large"));
  const auto again = make<ThreeBlocks>();
  EXPECT_THAT(error_of([&] { again->load_checkpoint(path("large")); }), HasSubstr("the model lacks head.bias"));
  ASSERT_TRUE(again->load_checkpoint(path("large"), "", {.strict = false}));
  expect_same_weights(*again, *small);
}

TEST_F(CheckpointOptions, NamesCanBeginDifferently) {
  const auto engine = make<ThreeBlocks>();
  take_steps(*engine, 3);
  engine->save_checkpoint(path("run"));
  const auto renamed = make<Renamed>(3);
  EXPECT_THAT(error_of([&] { renamed->load_checkpoint(path("run")); }), HasSubstr("it lacks body.block0.weight"));
  ASSERT_TRUE(renamed->load_checkpoint(path("run"), "", {.renames = {{"", "body."}}}));
  expect_same_weights(*renamed, *engine);
  EXPECT_EQ(take_steps(*renamed, 3), take_steps(*engine, 3));
}

TEST_F(CheckpointOptions, TheScheduleCanBeginAnew) {
  nlohmann::json json = {
      {"train_batch_size", 12},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1.0}}}}},
      {"scheduler", {{"type", "linear"}, {"params", {{"num_training_steps", 10}, {"num_warmup_steps", 0}}}}}};
  const auto config = config::parse_ds_config(json, "the test", {});
  const auto engine = initialize(std::make_shared<ThreeBlocks>(), config, {.world = comm::Group::alone()});
  const double first = engine->lr();
  take_steps(*engine, 4);
  const double fourth = engine->lr();
  engine->save_checkpoint(path("run"));
  engine->load_checkpoint(path("run"), "", {.schedule = false});
  EXPECT_EQ(engine->lr(), first);
  take_steps(*engine, 4);
  EXPECT_EQ(engine->lr(), fourth);
  engine->save_checkpoint(path("run"));
  const auto other = initialize(std::make_shared<ThreeBlocks>(), config, {.world = comm::Group::alone()});
  other->load_checkpoint(path("run"));
  EXPECT_EQ(other->lr(), fourth);
}

TEST_F(CheckpointOptions, RetentionKeepsTheNewestAndEveryMth) {
  const auto engine = make<ThreeBlocks>();
  fs::create_directories(path("run") / "global_step2.saving");  // an interrupted save of an earlier run
  fs::create_directories(path("run") / "notes");
  for (int i = 0; i < 7; ++i) {
    take_steps(*engine, 1);
    engine->save_checkpoint(path("run"), "", nlohmann::json::object(),
                            {.in_background = true, .retention = {.keep_last = 2, .keep_every = 3}});
  }
  engine->finish_saving();
  EXPECT_THAT(checkpoint::tags_of(path("run")), testing::ElementsAre("global_step7", "global_step6", "global_step3"));
  EXPECT_FALSE(fs::exists(path("run") / "global_step2.saving"));
  EXPECT_TRUE(fs::exists(path("run") / "notes"));
}

TEST_F(CheckpointOptions, AProgramsTensorsComeBackThoseOfARankAtTheSameNumberOfRanksAlone) {
  const at::Tensor shared = at::arange(6, at::kShort).view({2, 3}).t(), number = at::scalar_tensor(2.5, at::kDouble);
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    for (const bool in_background : {false, true}) {
      const auto engine = initialize(std::make_shared<ThreeBlocks>(), config_of(3, 2), {.world = world});
      take_steps(*engine, 1);
      // What other ranks give as shared does not count.
      const checkpoint::ClientTensors given{
          .shared = {{"a/b", world->rank() == 0 ? shared : shared + 1}, {"c", number}},
          .of_rank = {{"own", at::full({2}, world->rank())}}};
      engine->save_checkpoint(path("run"), "", {{"epoch", 2}}, {.in_background = in_background}, given);
      engine->finish_saving();
      const auto loaded = engine->load_checkpoint(path("run"));
      EXPECT_EQ(loaded->client_state, (nlohmann::json{{"epoch", 2}}));
      ASSERT_EQ(loaded->tensors.shared.size(), 2U);
      EXPECT_TRUE(at::equal(loaded->tensors.shared.at("a/b"), shared));
      EXPECT_EQ(loaded->tensors.shared.at("a/b").scalar_type(), at::kShort);
      EXPECT_TRUE(at::equal(loaded->tensors.shared.at("c"), number));
      EXPECT_TRUE(at::equal(loaded->tensors.of_rank.at("own"), at::full({2}, world->rank())));
    }
  });
  const auto alone = make<ThreeBlocks>();
  const auto loaded = alone->load_checkpoint(path("run"), "", {.weights_only = true});
  EXPECT_TRUE(at::equal(loaded->tensors.shared.at("a/b"), shared));
  EXPECT_TRUE(loaded->tensors.of_rank.empty());
  EXPECT_TRUE(checkpoint::verify(path("run") / "global_step1").empty());
}

// A power failure between the two last steps of a save leaves it so.
TEST_F(CheckpointOptions, ALatestThatNamesAnOlderCheckpointIsSaid) {
  const auto outcomes = test::outcomes_of_ranks(1, [&](const std::shared_ptr<comm::Group>&) {
    const auto engine = make<ThreeBlocks>();
    for (int i = 0; i < 3; ++i) {
      take_steps(*engine, 1);
      engine->save_checkpoint(path("run"));
    }
    engine->load_checkpoint(path("run"));
    std::puts("nothing is said until here");
    std::fflush(stdout);
    std::ofstream(path("run") / "latest") << "global_step1\n";
    std::ofstream(path("run") / "global_step3" / "manifest.json") << "damaged";
    engine->load_checkpoint(path("run"));
    EXPECT_EQ(engine->global_steps(), 1);
  });
  const std::string& output = outcomes.front().output;
  EXPECT_THAT(output,
              HasSubstr("latest names global_step1, which is older than global_step2: name that one to load it"));
  EXPECT_GT(output.find("which is older"), output.find("nothing is said until here"));
  EXPECT_EQ(outcomes.front().exit_code, 0) << output;
}

TEST_F(CheckpointOptions, TagsArePlainNames) {
  const auto engine = make<ThreeBlocks>();
  for (const std::string tag : {"..", "a/b", "x.saving", "latest"}) {
    EXPECT_THAT(error_of([&] { engine->save_checkpoint(path("run"), tag); }), HasSubstr("cannot be a checkpoint tag"));
  }
  EXPECT_THAT(error_of([&] { engine->save_checkpoint(""); }), HasSubstr("the folder to save to is empty"));
}

TEST_F(CheckpointOptions, RanksThatNameDifferentFoldersAreToldBothNames) {
  const auto outcomes = test::outcomes_of_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    const auto engine = initialize(std::make_shared<ThreeBlocks>(), config_of(1, 2), {.world = world});
    const std::string link = path("mine" + std::to_string(world->rank()));
    std::filesystem::create_directory_symlink(path("."), link);
    engine->save_checkpoint(link + "/run", "one");
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcomes.front().output, AllOf(HasSubstr("ranks 0 and 1 save to different folders"),
                                             HasSubstr("mine0/run"), HasSubstr("mine1/run")));
}

TEST_F(CheckpointOptions, RanksThatNameDifferentTagsAreWarnedOrStopped) {
  const auto outcomes = test::outcomes_of_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    const auto engine = initialize(std::make_shared<ThreeBlocks>(), config_of(1, 2), {.world = world});
    const std::string tag = "mine" + std::to_string(world->rank());
    engine->save_checkpoint(path("warned"), tag);
    EXPECT_THAT(error_of([&] {
                  engine->save_checkpoint(path("failed"), tag, nlohmann::json::object(),
                                          {.tag_validation = checkpoint::TagValidation::kFail});
                }),
                HasSubstr("'mine0' and 'mine1'"));
  });
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcomes.front().output, HasSubstr("ranks 0 and 1 name different tags"));
  EXPECT_THAT(checkpoint::tags_of(path("warned")), testing::ElementsAre("mine0"));
  EXPECT_FALSE(fs::exists(path("failed")));
}

class Empty : public ThreeBlocks {
 public:
  Empty() { register_parameter("nothing", at::zeros({0, 4})); }
};

TEST_F(CheckpointOptions, AParameterWithoutElementsIsAnError) {
  const auto engine = make<Empty>();
  EXPECT_THAT(error_of([&] { engine->save_checkpoint(path("run")); }), HasSubstr("'nothing' has no elements"));
}

// What a save of weights holds at each stage: whole tensors in the dtype of training.
TEST_F(CheckpointOptions, The16BitModelIsWhatTrainingComputesWith) {
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    for (const int stage : {0, 1, 2, 3}) {
      const nlohmann::json json = {
          {"train_batch_size", 12},
          {"bf16", {{"enabled", true}}},
          {"zero_optimization", {{"stage", stage}, {"stage3_gather_16bit_weights_on_model_save", true}}},
          {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}}};
      const auto engine =
          initialize(std::make_shared<test::TiedWeights>(),
                     config::parse_ds_config(json, "the test", {.data_parallel_size = 2}), {.world = world});
      const std::string file = "stage" + std::to_string(stage) + ".safetensors";
      EXPECT_TRUE(engine->save_16bit_model(path("weights"), file));
      world->barrier("saved");
      const storage::SafetensorsFile saved(path("weights") / file);
      const Gathered whole(*engine);
      size_t compared = 0;
      for (const auto& item : engine->module().named_parameters()) {
        if (!saved.contains(item.key())) continue;  // another name of a shared one
        EXPECT_EQ(saved.tensor(item.key()).scalar_type(), at::kBFloat16);
        EXPECT_TRUE(at::equal(saved.tensor(item.key()), item.value())) << item.key();
        ++compared;
      }
      EXPECT_EQ(compared, saved.entries().size());
      EXPECT_GE(compared, 4U);
    }
    const auto refuses = initialize(std::make_shared<ThreeBlocks>(), config_of(3, 2), {.world = world});
    EXPECT_FALSE(refuses->save_16bit_model(path("weights"), "none.safetensors"));
    const auto stage0 = initialize(std::make_shared<ThreeBlocks>(), config_of(0, 2), {.world = world});
    EXPECT_THAT(error_of([&] { stage0->save_16bit_model("/proc/nowhere"); }), HasSubstr("/proc/nowhere"));
    EXPECT_THAT(error_of([&] { stage0->save_16bit_model(path("weights"), "model.pt"); }), HasSubstr("'.pt'"));
    EXPECT_FALSE(fs::exists(path("weights") / "none.safetensors"));
  });
}

// A tag that is there already is replaced, and nothing of the earlier one stays.
TEST_F(CheckpointOptions, ATagCanBeSavedAgain) {
  const auto engine = make<ThreeBlocks>();
  for (int i = 0; i < 3; ++i) {
    take_steps(*engine, 1);
    engine->save_checkpoint(path("run"), "best", nlohmann::json::object(), {.in_background = i == 1});
  }
  engine->save_checkpoint(path("other"));
  EXPECT_TRUE(checkpoint::compare(path("run") / "best", path("other")).empty());
  EXPECT_THAT(checkpoint::tags_of(path("run")), testing::ElementsAre("best"));
  EXPECT_FALSE(fs::exists(path("run") / "best.saving"));
}

// Two "hosts" of one rank each, with a disk each.
TEST_F(CheckpointOptions, NodeLocalStorageKeepsEachHostsFilesOnItsDisk) {
  test::spawn_ranks(
      2,
      [&](const std::shared_ptr<comm::Group>& world) {
        const fs::path disk = path("disk" + std::to_string(world->rank()));
        const auto engine = initialize(std::make_shared<ThreeBlocks>(), config_of(3, 2), {.world = world});
        take_steps(*engine, 2);
        engine->save_checkpoint(disk, "", nlohmann::json::object(), {.node_local = true});
        const std::string own = "shard-0000" + std::to_string(world->rank()) + "-of-00002.safetensors";
        const std::string other = "shard-0000" + std::to_string(1 - world->rank()) + "-of-00002.safetensors";
        EXPECT_TRUE(fs::exists(disk / "global_step2" / own));
        EXPECT_FALSE(fs::exists(disk / "global_step2" / other));
        EXPECT_EQ(checkpoint::read_latest(disk), "global_step2");
        const auto want = take_steps(*engine, 2);
        const auto resumed = initialize(std::make_shared<ThreeBlocks>(), config_of(3, 2), {.world = world});
        ASSERT_TRUE(resumed->load_checkpoint(disk));
        EXPECT_EQ(take_steps(*resumed, 2), want);
      },
      {.ranks_a_host = 1});
}

}  // namespace
}  // namespace tessera::options_test

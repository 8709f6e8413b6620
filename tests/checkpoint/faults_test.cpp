// What may happen to a checkpoint: ranks killed at any moment of saving, bits that flip in any of its files, files that
// are cut or gone, disks that are full or read-only. What is left is named, and the newest whole one loads.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>

#include "tessera/base/input_file.h"
#include "tessera/checkpoint/inspect.h"
#include "tessera/checkpoint/retention.h"
#include "tessera/storage/atomic_dir.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::faults_test {
namespace {

namespace fs = std::filesystem;
using test::config_of;
using test::Frozen;
using test::take_steps;
using test::ToyInput;
using testing::HasSubstr;

constexpr int kSteps = 4;

auto make_engine(const std::shared_ptr<comm::Group>& world, int stage) {
  return initialize(std::make_shared<Frozen>(), config_of(stage, world->size()), {.world = world});
}

// A checkpoint after each step.
void run(const std::shared_ptr<comm::Group>& world, const fs::path& folder, bool in_background) {
  const auto engine = make_engine(world, 2);
  for (int step = 0; step < kSteps; ++step) {
    take_steps(*engine, 1);
    engine->save_checkpoint(folder, "", {}, {.in_background = in_background});
  }
  engine->finish_saving();
}

void flip_bit(const fs::path& path, uint64_t byte, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(byte));
  char value = 0;
  file.get(value);
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(static_cast<char>(value ^ (1 << bit)));
}

class CheckpointFaults : public testing::Test {
 protected:
  void save(int ranks) {
    test::spawn_ranks(ranks, [&](const auto& world) { run(world, path("run"), /*in_background=*/false); });
  }
  fs::path path(const std::string& name) const { return folder_.path() / name; }

  // What loading without falling back says; every rank says it.
  std::string load_error(const fs::path& folder, const std::string& tag = "", int ranks = 2) const {
    const auto outcomes =
        test::outcomes_of_ranks(ranks, [&](const auto& world) { make_engine(world, 1)->load_checkpoint(folder, tag); });
    for (const auto& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
    return outcomes.front().output;
  }

  // With falling back: after which step the run goes on.
  void expect_falls_back_to(int64_t step, const fs::path& folder) const {
    test::spawn_ranks(2, [&](const auto& world) {
      const auto engine = make_engine(world, 3);
      ASSERT_TRUE(engine->load_checkpoint(folder, "", {.fall_back = true}).has_value());
      EXPECT_EQ(engine->global_steps(), step);
      take_steps(*engine, 1);
    });
  }

  test::TemporaryFolder folder_;
};

// As often one rank as all of them, at moments spread over the whole save, in the foreground and beside training.
TEST_F(CheckpointFaults, KilledRanksLeaveOnlyWholeCheckpoints) {
  save(2);
  std::mt19937 random(7);
  const int rounds = std::getenv("TESSERA_TEST_WHOLE") != nullptr ? 50 : 16;
  int died = 0;
  for (int round = 0; round < rounds; ++round) {
    const fs::path output = path("killed" + std::to_string(round));
    const std::string whose = round % 2 == 0 ? "*" : std::to_string(round / 2 % 2);
    const std::string fault = whose + ":" + std::to_string(1 + random() % 24);
    SCOPED_TRACE(fault);
    const auto outcomes = test::outcomes_of_ranks(2,
                                                  [&](const auto& world) {
                                                    setenv("RANK", std::to_string(world->rank()).c_str(), 1);
                                                    setenv("TESSERA_FAULT", fault.c_str(), 1);
                                                    run(world, output, /*in_background=*/round % 4 < 2);
                                                  },
                                                  {.timeout = std::chrono::seconds(3)});
    for (const auto& outcome : outcomes) died += outcome.exit_code == 128 + SIGKILL ? 1 : 0;

    int64_t newest = 0;
    for (const std::string& tag : checkpoint::tags_of(output)) {
      EXPECT_THAT(checkpoint::verify(output / tag), testing::IsEmpty());
      EXPECT_THAT(checkpoint::compare(output / tag, path("run") / tag), testing::IsEmpty());
      newest = std::max<int64_t>(newest, std::stoll(tag.substr(std::string("global_step").size())));
    }
    const std::string latest = checkpoint::read_latest(output);
    if (!latest.empty()) {
      EXPECT_TRUE(fs::exists(output / latest / "manifest.json")) << latest;
    }
    if (newest == 0) continue;
    test::spawn_ranks(1, [&](const auto& world) {  // a process that has seen no faults
      const auto engine = make_engine(world, 0);
      ASSERT_TRUE(engine->load_checkpoint(output, "", {.fall_back = true}).has_value());
      EXPECT_GE(engine->global_steps(), newest - 1);  // killed before latest's turn, it is one behind
      run(world, output, /*in_background=*/false);    // and saving there goes on
    });
    fs::remove_all(output);
  }
  EXPECT_GE(died, rounds * 9 / 10) << "too few of the faults were reached";
}

TEST_F(CheckpointFaults, AFlippedBitIsFoundInEachKindOfFile) {
  save(2);
  std::mt19937 random(11);
  const fs::path newest = path("run") / "global_step4";
  for (const std::string name :
       {"manifest.json", "shard-00000-of-00002.safetensors", "shard-00001-of-00002.safetensors"}) {
    const uint64_t bytes = fs::file_size(newest / name);
    for (int round = 0; round < 6; ++round) {
      const uint64_t byte = round == 0 ? 3 : round == 1 ? 40 : round == 2 ? bytes - 1 : random() % bytes;
      const int bit = static_cast<int>(random() % 8);
      SCOPED_TRACE(name + ", byte " + std::to_string(byte) + ", bit " + std::to_string(bit));
      flip_bit(newest / name, byte, bit);
      const auto findings = checkpoint::verify(newest);
      ASSERT_EQ(findings.size(), 1U);
      EXPECT_THAT(findings.front(), HasSubstr(name));
      if (round < 3) {
        EXPECT_THAT(load_error(path("run")), HasSubstr(name));
        expect_falls_back_to(3, path("run"));
      }
      flip_bit(newest / name, byte, bit);
    }
  }
  EXPECT_THAT(checkpoint::verify(newest), testing::IsEmpty());

  flip_bit(path("run") / "latest", 11, 1);  // global_step6
  EXPECT_THAT(load_error(path("run")), HasSubstr("global_step6"));
  expect_falls_back_to(4, path("run"));
}

TEST_F(CheckpointFaults, MissingAndTruncatedFilesAreNamed) {
  save(2);
  const fs::path run = path("run");
  const std::string shard = "shard-00001-of-00002.safetensors";
  fs::resize_file(run / "global_step4" / shard, fs::file_size(run / "global_step4" / shard) - 4);
  EXPECT_THAT(load_error(run), HasSubstr(shard + " has"));
  fs::remove(run / "global_step3" / shard);
  EXPECT_THAT(load_error(run, "global_step3"), HasSubstr(shard + " is missing"));
  fs::remove(run / "global_step2" / "manifest.json");
  EXPECT_THAT(load_error(run, "global_step2"), HasSubstr("no manifest.json"));
  expect_falls_back_to(1, run);

  // With none left a run must not begin anew in silence.
  fs::remove(run / "global_step1" / shard);
  const auto outcomes = test::outcomes_of_ranks(
      2, [&](const auto& world) { make_engine(world, 1)->load_checkpoint(run, "", {.fall_back = true}); });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.output, HasSubstr("none of the 3 checkpoints here can be used"));
  }
  EXPECT_THAT(load_error(path("nowhere"), "global_step1"), HasSubstr("global_step1"));
}

TEST_F(CheckpointFaults, AFormatToComeIsNamed) {
  save(1);
  const fs::path manifest = path("run") / "global_step4" / "manifest.json";
  std::string text = read_input_file(manifest);
  text.replace(text.find("\"version\": 3"), 12, "\"version\": 9");
  std::ofstream(manifest) << text;
  EXPECT_THAT(load_error(path("run"), "", 1),
              HasSubstr("its format version is 9, but this program knows versions up to 4"));
}

// In the background the training thread hears of it at a later step, whose work is done; training goes on.
TEST_F(CheckpointFaults, AFailedSaveInTheBackgroundReachesALaterStep) {
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    const auto engine = make_engine(world, 3), undisturbed = make_engine(world, 3);
    take_steps(*engine, 1);
    engine->save_checkpoint("/proc/nowhere", "", {}, {.in_background = true});
    int failures = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const auto go_on = [&](const std::string& label) {  // what rank 0 says, so that all take the same number of steps
      const bool wanted = failures == 0 && std::chrono::steady_clock::now() < end;
      return world->exchange_texts(wanted ? "yes" : "no", label).front() == "yes";
    };
    int64_t steps = 1;
    do {
      for (int i = 0; i < 100; ++i, ++steps) {
        const ToyInput input = test::share_of(static_cast<int>(engine->global_steps()), *world);
        engine->backward(engine->call([](auto& m, const ToyInput& in) { return m.loss(in); }, input));
        try {
          engine->step();
        } catch (const checkpoint::SaveFailed& error) {  // perhaps not at the same step on all ranks
          ++failures;
          EXPECT_THAT(error.what(), HasSubstr("global_step1"));
          EXPECT_THAT(error.what(), HasSubstr("/proc/nowhere"));
        }
      }
    } while (go_on("more steps"));
    EXPECT_EQ(failures, 1);
    EXPECT_EQ(engine->global_steps(), steps);
    take_steps(*undisturbed, static_cast<int>(steps));
    const auto got = test::weights_of(*engine), want = test::weights_of(*undisturbed);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i]));
    engine->save_checkpoint(path("later"), "", {}, {.in_background = true});
    engine->finish_saving();
    EXPECT_TRUE(checkpoint::verify(path("later") / fmt::format("global_step{}", steps)).empty());
  });
}

TEST_F(CheckpointFaults, AFolderThatCannotBeWrittenCostsNothing) {
  save(2);
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    const auto engine = make_engine(world, 1);
    ASSERT_TRUE(engine->load_checkpoint(path("run")).has_value());
    EXPECT_THROW(engine->save_checkpoint("/proc/nowhere"), Error);
    take_steps(*engine, 1);
    EXPECT_TRUE(engine->load_checkpoint(path("run")).has_value());
    EXPECT_EQ(engine->global_steps(), kSteps);
    world->barrier("loaded");
    if (world->rank() == 0) fs::remove_all(path("run"));
    world->barrier("removed");
    take_steps(*engine, 1);
    engine->save_checkpoint(path("run"));  // a folder that vanished is made again
    EXPECT_TRUE(checkpoint::verify(path("run") / "global_step5").empty());
  });
}

}  // namespace
}  // namespace tessera::faults_test

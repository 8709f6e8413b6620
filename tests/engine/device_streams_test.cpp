// Training on devices that NCCL connects (its stand-in, tests/support/nccl_stand_in.cpp): what the engine queues on
// streams, and what it waits for. Each rank says that it is on a host of its own, so that the one far device counts as
// several; the host transport between them is gloo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <utility>

#include "tessera/comm/group.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/device_runs.h"
#include "tests/support/built_places.h"
#include "tests/support/temporary_folder.h"

namespace tessera::device_test {
namespace {

using test::TemporaryFolder;

constexpr uint64_t kSeed = 7;

test::SpawnOptions with_nccl() {
  return {.timeout = std::chrono::seconds(60), .ranks_a_host = 1, .backend = "gloo", .before_joining = [](int) {
            setenv("TESSERA_NCCL_LIBRARY", test::nccl_stand_in().c_str(), 1);
          }};
}

class OverNccl : public testing::TestWithParam<Setting> {};

// NCCL adds in an order of its own. Streams run late, and what they do to the same bytes is watched.
TEST_P(OverNccl, TrainsAsOnTheCpu) {
  const Setting& setting = GetParam();
  const TemporaryFolder folder;
  test::spawn_ranks(
      setting.ranks,
      [&](const World& world) {
        const at::Device far = test::far_device();
        test::set_far_mode({.late = true, .seed = kSeed, .records = true});
        const auto on_device = engine_on(far, setting, folder.path(), world);
        EXPECT_TRUE(world->connects(far));
        const Trained trained = train(*on_device, kSteps);
        EXPECT_THAT(test::far_facts().races, testing::IsEmpty());
        test::set_far_mode({});
        const auto on_cpu = engine_on(at::kCPU, setting, folder.path(), world);
        expect_alike(trained, train(*on_cpu, kSteps), setting.precision == "fp32" ? 1e-6 : 2e-2);
      },
      with_nccl());
}

// Two ranks without accumulation, and four with it in fp32; all of it with TESSERA_TEST_WHOLE.
std::vector<Setting> settings_over_nccl() {
  const bool whole = std::getenv("TESSERA_TEST_WHOLE") != nullptr;
  std::vector<Setting> settings;
  for (const int ranks : {2, 4}) {
    for (const std::string precision : {"fp32", "bf16", "fp16"}) {
      for (int stage = 0; stage <= 3; ++stage) {
        for (const int accumulation : {1, 2}) {
          const bool in_sample = accumulation == 1 ? ranks == 2 : ranks == 4 && precision == "fp32";
          if (!whole && !in_sample) continue;
          const Setting plain{.ranks = ranks, .stage = stage, .precision = precision, .accumulation = accumulation};
          settings.push_back(plain);
          for (const std::string at : {"cpu", "nvme"}) {
            Setting offloaded = plain;
            offloaded.optimizer_at = at;
            if (stage >= 1) settings.push_back(offloaded);
            offloaded.parameters_at = at;
            if (stage >= 3) settings.push_back(offloaded);
          }
        }
      }
    }
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Settings, OverNccl, testing::ValuesIn(settings_over_nccl()),
                         [](const auto& info) { return name_of(info.param); });

void step_once(ModelEngine<Model>& engine) {
  const test::ToyInput input{.x = test::share_of(0, engine.world()).x.to(engine.device())};
  engine.backward(engine.call([](Model& m, const test::ToyInput& in) { return m.loss(in); }, input));
  engine.step();
}

// For the gradient norm, which decides about clipping and overflow. Moving the batch there is the test's.
TEST(DeviceStreams, TheHostWaitsOnceAStep) {
  for (int stage = 0; stage <= 3; ++stage) {
    test::spawn_ranks(
        2,
        [&](const World& world) {
          const at::Device far = test::far_device();
          const auto engine = engine_on(far, {.ranks = 2, .stage = stage, .precision = "bf16"}, "", world);
          for (int step = 0; step < 2; ++step) step_once(*engine);
          test::set_far_mode({.late = true, .seed = kSeed});
          for (int step = 0; step < 3; ++step) step_once(*engine);
          EXPECT_EQ(test::far_facts().host_waits - 3 /* of the batches */, 3) << "stage " << stage;
        },
        with_nccl());
  }
}

TEST(DeviceStreams, OffloadedStateIsPinned) {
  const Setting setting{.ranks = 2, .stage = 3, .precision = "bf16", .optimizer_at = "cpu", .parameters_at = "cpu"};
  test::spawn_ranks(
      setting.ranks,
      [&](const World& world) {
        const auto engine = engine_on(test::far_device(), setting, "", world);
        train(*engine, 1);
        int64_t bytes = 0;
        for (const auto& unit : engine->sharded_model().units()) {
          const int64_t owned = unit->owned().numel();
          bytes += owned * (2 + 4 + 4 + 4 + 2);  // weights, master weights, two moments, gradients
          for (const zero::StateTensor& state : {unit->compute(), unit->master(), unit->grad()}) {
            EXPECT_TRUE(state.tensor().is_pinned());
          }
        }
        EXPECT_GE(static_cast<int64_t>(test::far_facts().pinned_bytes), bytes);
      },
      with_nccl());
}

TEST(DeviceStreams, WhatIsNotToBePinnedIsNot) {
  const Setting setting{.ranks = 2, .stage = 2, .precision = "bf16", .optimizer_at = "cpu", .pins = false};
  test::spawn_ranks(
      setting.ranks,
      [&](const World& world) {
        const at::Device far = test::far_device();
        const int64_t before = test::far_facts().pinned_allocations;
        train(*engine_on(far, setting, "", world), 1);
        EXPECT_EQ(test::far_facts().pinned_allocations, before);
      },
      with_nccl());
}

// What a run of rank 0 without its n-th wait came to. 0: with all.
struct Waits {
  size_t races = 0;
  std::vector<test::FarWait> waits = {};  // that ordered something, since the first step
};

Waits without_wait(int64_t dropped, const Setting& setting) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "found";
  test::spawn_ranks(
      setting.ranks,
      [&](const World& world) {
        const at::Device far = test::far_device();
        const auto engine = engine_on(far, setting, folder.path(), world);
        test::set_far_mode({.late = true, .records = true, .drop_wait = world->rank() == 0 ? dropped : 0});
        step_once(*engine);
        const int64_t of_first_step = test::far_facts().waits;
        step_once(*engine);
        const test::FarFacts facts = test::far_facts();
        test::set_far_mode({});  // a race is what this looks for, and no fault of this process
        if (dropped == 0) {
          EXPECT_THAT(facts.races, testing::IsEmpty());
        }
        if (world->rank() > 0) return;
        std::ofstream file(path);
        file << facts.races.size();
        for (const test::FarWait& wait : facts.new_waits) {
          if (wait.number > of_first_step) file << ' ' << wait.number << ' ' << wait.waiting << ' ' << wait.after;
        }
      },
      with_nccl());
  Waits found;
  std::ifstream file(path);
  file >> found.races;
  for (test::FarWait wait{}; file >> wait.number >> wait.waiting >> wait.after;) found.waits.push_back(wait);
  return found;
}

// The waits of one stream for events of another are left out in turn, and the recorder finds two operations that may
// run in either order. Not each time: the host may have waited meanwhile for what was touched before, or a
// communicator's thread may have begun only after that. And threads of several communicators count together, so the
// n-th wait may be another one, which orders nothing. Hence the rounds.
TEST(DeviceStreams, EveryWaitIsNeeded) {
  constexpr int kMostRounds = 24;
  std::vector<Setting> settings{
      {.ranks = 2, .stage = 3, .precision = "bf16", .optimizer_at = "cpu", .parameters_at = "cpu"},
      {.ranks = 2, .stage = 3, .precision = "bf16"}};
  if (std::getenv("TESSERA_TEST_WHOLE") != nullptr) {
    settings.push_back({.ranks = 2, .stage = 1, .precision = "bf16"});
  }
  for (const Setting& setting : settings) {
    const Waits all = without_wait(0, setting);
    std::map<std::pair<int64_t, int64_t>, int> found;  // by streams
    for (const test::FarWait& wait : all.waits) found[{wait.waiting, wait.after}] = 0;
    EXPECT_GE(found.size(), 3) << name_of(setting);
    for (int round = 0; round < kMostRounds; ++round) {
      for (const test::FarWait& wait : all.waits) {
        int& times = found[{wait.waiting, wait.after}];
        if (times == 0) times += without_wait(wait.number, setting).races > 0 ? 1 : 0;
      }
    }
    for (const auto& [streams, times] : found) {
      EXPECT_GT(times, 0) << name_of(setting) << ": stream " << streams.first << " need not wait for "
                          << streams.second;
    }
  }
}

}  // namespace
}  // namespace tessera::device_test

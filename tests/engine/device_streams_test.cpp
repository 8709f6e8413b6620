// Training on devices that NCCL connects (its stand-in, tests/support/nccl_stand_in.cpp): what the engine queues on
// streams, and what it waits for. Each rank says that it is on a host of its own, so that the one far device counts as
// several; the host transport between them is gloo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tessera/comm/group.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/device_runs.h"
#include "tests/support/temporary_folder.h"

namespace tessera::device_test {
namespace {

using test::TemporaryFolder;

test::SpawnOptions with_nccl() {
  return {.timeout = std::chrono::seconds(60), .ranks_a_host = 1, .backend = "gloo", .before_joining = [](int) {
            setenv("TESSERA_NCCL_LIBRARY", TESSERA_NCCL_STAND_IN, 1);
          }};
}

class OverNccl : public testing::TestWithParam<Setting> {};

// NCCL adds in an order of its own.
TEST_P(OverNccl, TrainsAsOnTheCpu) {
  const Setting& setting = GetParam();
  const TemporaryFolder folder;
  test::spawn_ranks(
      setting.ranks,
      [&](const World& world) {
        const auto on_device = engine_on(test::far_device(), setting, folder.path(), world);
        EXPECT_TRUE(world->connects(test::far_device()));
        const Trained trained = train(*on_device, kSteps);
        const auto on_cpu = engine_on(at::kCPU, setting, folder.path(), world);
        expect_alike(trained, train(*on_cpu, kSteps), setting.precision == "fp32" ? 1e-6 : 2e-2);
      },
      with_nccl());
}

std::vector<Setting> settings_over_nccl() {
  std::vector<Setting> settings;
  for (const int ranks : {2, 4}) {
    for (const std::string precision : {"fp32", "bf16", "fp16"}) {
      for (int stage = 0; stage <= 3; ++stage) {
        for (const int accumulation : {1, 2}) {
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

}  // namespace
}  // namespace tessera::device_test

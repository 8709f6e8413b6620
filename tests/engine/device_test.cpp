// Training on a device that is not the CPU: the results of the CPU, state where the configuration wants it, and
// checkpoints that either can go on from. The device is the far one (support/far_device.h), or TESSERA_TEST_DEVICE's
// ("cuda"), whose ranks share the GPUs that there are.
#include "tessera/storage/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/kernels/nf4.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/device_runs.h"
#include "tests/support/temporary_folder.h"

namespace tessera::device_test {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;

// A device adds up in its own order, and in 16 bits rounds otherwise.
double tolerance_of(const Setting& setting) { return setting.precision == "fp32" ? 1e-4 : 2e-2; }

class OnDevice : public testing::TestWithParam<Setting> {};

TEST_P(OnDevice, TrainsAsOnTheCpu) {
  const Setting& setting = GetParam();
  const TemporaryFolder folder;
  test::spawn_ranks(setting.ranks, [&](const World& world) {
    const auto on_device = engine_on(device_under_test(), setting, folder.path(), world);
    const Trained trained = train(*on_device, kSteps);
    const auto on_cpu = engine_on(at::kCPU, setting, folder.path(), world);
    expect_alike(trained, train(*on_cpu, kSteps), tolerance_of(setting));
  });
}

std::vector<Setting> settings() {
  std::vector<Setting> settings;
  for (const int ranks : {1, 2}) {
    for (const std::string precision : {"fp32", "bf16", "fp16"}) {
      for (int stage = 0; stage <= 3; ++stage) {
        settings.push_back({.ranks = ranks, .stage = stage, .precision = precision});
        if (stage == 0) continue;
        settings.push_back({.ranks = ranks, .stage = stage, .precision = precision, .optimizer_at = "cpu"});
        settings.push_back({.ranks = ranks, .stage = stage, .precision = precision, .optimizer_at = "nvme"});
      }
      for (const std::string at : {"cpu", "nvme"}) {
        settings.push_back(
            {.ranks = ranks, .stage = 3, .precision = precision, .optimizer_at = at, .parameters_at = at});
      }
    }
    settings.push_back({.ranks = ranks, .stage = 2, .precision = "bf16", .optimizer_at = "cpu", .accumulation = 2});
    settings.push_back({.ranks = ranks, .stage = 2, .precision = "bf16", .optimizer_at = "cpu", .delayed = true});
    settings.push_back({.ranks = ranks, .stage = 3, .precision = "bf16", .checkpointed = true});
    for (const std::string type : {"Lion", "SGD", "Adagrad", "Lamb", "Muon"}) {
      settings.push_back(
          {.ranks = ranks, .stage = 2, .precision = "bf16", .optimizer = {{"type", type}, {"params", {{"lr", 0.01}}}}});
    }
    const json uncorrected = {{"type", "Adam"}, {"params", {{"lr", 0.01}, {"bias_correction", false}}}};
    settings.push_back({.ranks = ranks, .stage = 1, .precision = "bf16", .optimizer = uncorrected});
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Settings, OnDevice, testing::ValuesIn(settings()),
                         [](const auto& info) { return name_of(info.param); });

TEST(DeviceOffload, StateRestsWhereTheConfigurationSays) {
  const Setting setting{.ranks = 2, .stage = 3, .precision = "bf16", .optimizer_at = "cpu", .parameters_at = "cpu"};
  test::spawn_ranks(setting.ranks, [&](const World& world) {
    const auto engine = engine_on(device_under_test(), setting, "", world);
    train(*engine, 1);
    for (const auto& unit : engine->sharded_model().units()) {
      EXPECT_EQ(unit->device(), engine->device());
      EXPECT_TRUE(unit->compute().tensor().is_cpu() && unit->master().tensor().is_cpu());
      EXPECT_TRUE(unit->grad().tensor().is_cpu());
      for (const zero::StateTensor& state : unit->optimizer_state()) EXPECT_TRUE(state.tensor().is_cpu());
    }
    if (std::getenv("TESSERA_TEST_DEVICE") != nullptr) return;
    EXPECT_LE(test::far_bytes_in_use(), engine->module().shift.nbytes() + 64);  // nothing else
  });
}

TEST(DeviceOffload, WithoutItStateIsOnTheDevice) {
  const Setting setting{.stage = 2, .precision = "bf16"};
  test::spawn_ranks(setting.ranks, [&](const World& world) {
    const auto engine = engine_on(device_under_test(), setting, "", world);
    for (const auto& unit : engine->sharded_model().units()) {
      EXPECT_EQ(unit->master().tensor().device(), engine->device());
      EXPECT_EQ(unit->grad().tensor().device(), engine->device());
      for (const zero::StateTensor& state : unit->optimizer_state())
        EXPECT_EQ(state.tensor().device(), engine->device());
    }
  });
}

class DeviceCheckpoint : public testing::TestWithParam<Setting> {};

TEST_P(DeviceCheckpoint, GoesOnThereAndOnTheCpu) {
  const Setting& setting = GetParam();
  const TemporaryFolder folder;
  test::spawn_ranks(setting.ranks, [&](const World& world) {
    const at::Device device = device_under_test();
    const auto first = engine_on(device, setting, folder.path(), world);
    train(*first, 2);
    checkpoint::SaveOptions options = first->save_options();
    options.in_background = true;
    first->save_checkpoint(folder.path(), "two", json::object(), options);
    first->finish_saving();
    const Trained went_on = train(*first, 2);
    for (const at::Device where : {device, at::Device(at::kCPU)}) {
      const auto second = engine_on(where, setting, folder.path(), world);
      ASSERT_TRUE(second->load_checkpoint(folder.path(), "two"));
      const Trained resumed = train(*second, 2);
      expect_alike(resumed, went_on, tolerance_of(setting));
      const bool same_bits = where == device && std::getenv("TESSERA_TEST_DEVICE") == nullptr;
      if (same_bits) {
        EXPECT_EQ(resumed.losses, went_on.losses);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Settings, DeviceCheckpoint,
    testing::Values(Setting{.ranks = 2, .stage = 0}, Setting{.ranks = 2, .stage = 2, .precision = "bf16"},
                    Setting{.ranks = 1, .stage = 3, .precision = "bf16", .optimizer_at = "cpu", .parameters_at = "cpu"},
                    Setting{.ranks = 2, .stage = 3, .precision = "bf16", .optimizer_at = "nvme"}),
    [](const auto& info) { return name_of(info.param); });

// There LibTorch's operators make of the bytes what a loop makes of them on the CPU.
TEST(DeviceProducts, WeightsInNf4AreThoseOfTheCpu) {
  const at::Device device = device_under_test();
  for (const auto& shape : std::vector<std::vector<int64_t>>{{96, 130}, {1, 7}}) {
    const at::Tensor weight = at::cos(at::arange(shape[0] * shape[1], at::kFloat) * 1.7).view(shape);
    const kernels::Nf4Part whole = kernels::Nf4Part::whole(shape[0], shape[1]);
    const kernels::Nf4 bytes{.blocks = at::empty({kernels::nf4_block_bytes(weight.numel())}, at::kByte),
                             .nested = at::empty({kernels::nf4_nested_bytes(weight.numel())}, at::kByte)};
    kernels::quantize_nf4(weight, bytes);
    const kernels::Nf4 moved{.blocks = bytes.blocks.to(device), .nested = bytes.nested.to(device)};
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor there = kernels::dequantize_nf4(moved, whole, dtype);
      EXPECT_EQ(there.device().type(), device.type());
      EXPECT_TRUE(at::equal(there.cpu(), kernels::dequantize_nf4(bytes, whole, dtype)));
    }
  }
}

TEST(DeviceOfRank, RanksTakeDevicesInTurn) {
  EXPECT_EQ(storage::device_of_rank("cpu", 3, "here"), at::Device(at::kCPU));
  if (std::getenv("TESSERA_TEST_DEVICE") != nullptr) return;
  EXPECT_EQ(storage::device_of_rank("auto", 3, "here"), at::Device(at::kCPU));
  const at::Device far = test::far_device();
  EXPECT_EQ(storage::device_of_rank("far", 3, "here"), far);
  EXPECT_EQ(storage::device_of_rank("far:0", 3, "here"), far);
}

TEST(DeviceOfRank, NamesADeviceThatIsNotThere) {
  for (const std::string name : {"cuda:77", "gpu", "far:-2"}) {
    try {
      storage::device_of_rank(name, 0, "run.yaml, training.device");
      ADD_FAILURE() << name << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfig);
      EXPECT_THAT(error.what(), HasSubstr("there is no device '" + name + "' on this machine"));
      EXPECT_THAT(error.what(), HasSubstr("run.yaml, training.device"));
    }
  }
}

TEST(DeviceErrors, CompressedCommunicationIsRefused) {
  const Setting setting{.stage = 1, .optimizer = {{"type", "OneBitAdam"}, {"params", {{"lr", 0.01}}}}};
  test::spawn_ranks(1, [&](const World& world) {
    try {
      engine_on(device_under_test(), setting, "", world);
      FAIL() << "did not throw";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("works only on the CPU"));
    }
  });
}

}  // namespace
}  // namespace tessera::device_test

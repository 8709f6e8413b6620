// Training on a device that is not the CPU: the results of the CPU, state where the configuration wants it, and
// checkpoints that either can go on from. The device is the far one (support/far_device.h), or TESSERA_TEST_DEVICE's
// ("cuda"), whose ranks share the GPUs that there are.
#include "tessera/storage/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/kernels/nf4.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/far_device.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::device_test {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using testing::HasSubstr;
using World = std::shared_ptr<comm::Group>;

constexpr int kSteps = 4;

// Where the ranks of a test train.
at::Device device_under_test() {
  const char* const named = std::getenv("TESSERA_TEST_DEVICE");
  return named == nullptr ? test::far_device() : at::Device(named);
}

// Blocks, weights that two units share, and a buffer.
class Model : public test::TiedWeights {
 public:
  Model() { shift = register_buffer("shift", at::cos(at::arange(test::kWidth, at::kFloat))); }
  at::Tensor loss(const test::ToyInput& input) override {
    return TiedWeights::loss({.x = (input.x + shift).to(first->weight.scalar_type())}).to(at::kFloat);
  }
  at::Tensor shift;
};

struct Setting {
  int ranks = 1, stage = 0;
  std::string precision = "fp32", optimizer_at = "none", parameters_at = "none";
  json optimizer = {{"type", "AdamW"}, {"params", {{"lr", 0.01}, {"weight_decay", 0.1}}}};
  int accumulation = 1;
  bool delayed = false;
};

std::string name_of(const Setting& setting) {
  std::string name = setting.precision + "_stage" + std::to_string(setting.stage) + "_ranks" +
                     std::to_string(setting.ranks) + "_" + setting.optimizer["type"].get<std::string>();
  if (setting.optimizer_at != "none") name += "_optimizer_" + setting.optimizer_at;
  if (setting.parameters_at != "none") name += "_parameters_" + setting.parameters_at;
  if (setting.accumulation > 1) name += "_accumulated";
  if (setting.delayed) name += "_delayed";
  return name;
}

void PrintTo(const Setting& setting, std::ostream* out) { *out << name_of(setting); }

config::DsConfig config_of(const Setting& setting, const std::string& folder) {
  const auto offload = [&](const std::string& device) { return json{{"device", device}, {"nvme_path", folder}}; };
  json zero = {{"stage", setting.stage}, {"stage3_max_live_parameters", 0}};
  if (setting.optimizer_at != "none") zero["offload_optimizer"] = offload(setting.optimizer_at);
  if (setting.parameters_at != "none") zero["offload_param"] = offload(setting.parameters_at);
  const json json = {{"train_micro_batch_size_per_gpu", 12 / setting.ranks},
                     {"gradient_accumulation_steps", setting.accumulation},
                     {"gradient_clipping", 0.5},
                     {"zero_optimization", zero},
                     {"bf16", {{"enabled", setting.precision == "bf16"}}},
                     {"fp16", {{"enabled", setting.precision == "fp16"}, {"initial_scale_power", 8}}},
                     {"tessera", {{"delayed_update", setting.delayed}}},
                     {"optimizer", setting.optimizer}};
  return config::parse_ds_config(json, "the test", {.data_parallel_size = setting.ranks});
}

using ModelsEngine = std::unique_ptr<ModelEngine<Model>>;

ModelsEngine engine_on(at::Device device, const Setting& setting, const std::string& folder, const World& world) {
  return initialize(std::make_shared<Model>(), config_of(setting, folder), {.world = world, .device = device});
}

struct Trained {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> weights;
};

Trained train(ModelEngine<Model>& engine, int steps) {
  Trained trained;
  for (int step = 0; step < steps * engine.config().batch.accumulation; ++step) {
    const test::ToyInput input{.x = test::share_of(0, engine.world()).x.to(engine.device())};
    const at::Tensor loss = engine.call([](Model& m, const test::ToyInput& in) { return m.loss(in); }, input);
    EXPECT_EQ(loss.device(), engine.device());
    engine.backward(loss);
    engine.step();
    trained.losses.push_back(loss.item<double>());
    trained.norms.push_back(engine.get_global_grad_norm());
  }
  engine.finish_update();
  for (const at::Tensor& weight : test::weights_of(engine)) {
    EXPECT_EQ(weight.device(), engine.device());
    trained.weights.push_back(weight.cpu());
  }
  return trained;
}

// A device adds up in its own order, and in 16 bits rounds otherwise.
void expect_alike(const Trained& on_device, const Trained& on_cpu, const std::string& precision) {
  const double tolerance = precision == "fp32" ? 1e-4 : 2e-2;
  for (size_t step = 0; step < on_cpu.losses.size(); ++step) {
    EXPECT_NEAR(on_device.losses[step], on_cpu.losses[step], tolerance * std::abs(on_cpu.losses[step]));
    EXPECT_NEAR(on_device.norms[step], on_cpu.norms[step], tolerance * on_cpu.norms[step]);
  }
  EXPECT_LT(on_cpu.losses.back(), on_cpu.losses.front());
  for (size_t i = 0; i < on_cpu.weights.size(); ++i) {
    EXPECT_TRUE(at::allclose(on_device.weights[i], on_cpu.weights[i], tolerance, tolerance)) << i;
  }
}

class OnDevice : public testing::TestWithParam<Setting> {};

TEST_P(OnDevice, TrainsAsOnTheCpu) {
  const Setting& setting = GetParam();
  const TemporaryFolder folder;
  test::spawn_ranks(setting.ranks, [&](const World& world) {
    const auto on_device = engine_on(device_under_test(), setting, folder.path(), world);
    const Trained trained = train(*on_device, kSteps);
    const auto on_cpu = engine_on(at::kCPU, setting, folder.path(), world);
    expect_alike(trained, train(*on_cpu, kSteps), setting.precision);
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
      expect_alike(resumed, went_on, setting.precision);
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

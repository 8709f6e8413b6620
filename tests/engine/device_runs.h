// What the tests of devices train: a model of blocks on a device, in the settings that a device makes a difference to.
// The device is the far one (support/far_device.h), or TESSERA_TEST_DEVICE's.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "tests/engine/checkpoint_runs.h"
#include "tests/support/far_device.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::device_test {

using nlohmann::json;
using World = std::shared_ptr<comm::Group>;

inline constexpr int kSteps = 4;

// Where the ranks of a test train.
inline at::Device device_under_test() {
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
  bool pins = true;           // what rests on the host
  bool checkpointed = false;  // activations, whose inputs wait on the host
};

inline std::string name_of(const Setting& setting) {
  std::string name = setting.precision + "_stage" + std::to_string(setting.stage) + "_ranks" +
                     std::to_string(setting.ranks) + "_" + setting.optimizer["type"].get<std::string>();
  if (setting.optimizer_at != "none") name += "_optimizer_" + setting.optimizer_at;
  if (setting.parameters_at != "none") name += "_parameters_" + setting.parameters_at;
  if (setting.accumulation > 1) name += "_accumulated";
  if (setting.delayed) name += "_delayed";
  if (setting.checkpointed) name += "_checkpointed";
  return name;
}

inline void PrintTo(const Setting& setting, std::ostream* out) { *out << name_of(setting); }

inline config::DsConfig config_of(const Setting& setting, const std::string& folder) {
  const auto offload = [&](const std::string& device) {
    return json{{"device", device}, {"nvme_path", folder}, {"pin_memory", setting.pins}};
  };
  json zero = {{"stage", setting.stage}, {"stage3_max_live_parameters", 0}};
  if (setting.optimizer_at != "none") zero["offload_optimizer"] = offload(setting.optimizer_at);
  if (setting.parameters_at != "none") zero["offload_param"] = offload(setting.parameters_at);
  const json json = {{"train_micro_batch_size_per_gpu", 12 / setting.ranks},
                     {"gradient_accumulation_steps", setting.accumulation},
                     {"gradient_clipping", 0.5},
                     {"zero_optimization", zero},
                     {"bf16", {{"enabled", setting.precision == "bf16"}}},
                     {"fp16", {{"enabled", setting.precision == "fp16"}, {"initial_scale_power", 8}}},
                     {"activation_checkpointing", {{"cpu_checkpointing", setting.checkpointed}}},
                     {"tessera", {{"delayed_update", setting.delayed}}},
                     {"optimizer", setting.optimizer}};
  return config::parse_ds_config(json, "the test", {.data_parallel_size = setting.ranks});
}

using ModelsEngine = std::unique_ptr<ModelEngine<Model>>;

inline ModelsEngine engine_on(at::Device device, const Setting& setting, const std::string& folder,
                              const World& world) {
  const auto model = std::make_shared<Model>();
  model->checkpoints = setting.checkpointed;
  return initialize(model, config_of(setting, folder), {.world = world, .device = device});
}

struct Trained {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> weights;
};

inline Trained train(ModelEngine<Model>& engine, int steps) {
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

inline void expect_alike(const Trained& on_device, const Trained& on_cpu, double tolerance) {
  for (size_t step = 0; step < on_cpu.losses.size(); ++step) {
    EXPECT_NEAR(on_device.losses[step], on_cpu.losses[step], tolerance * std::abs(on_cpu.losses[step]));
    EXPECT_NEAR(on_device.norms[step], on_cpu.norms[step], tolerance * on_cpu.norms[step]);
  }
  EXPECT_LT(on_cpu.losses.back(), on_cpu.losses.front());
  for (size_t i = 0; i < on_cpu.weights.size(); ++i) {
    EXPECT_TRUE(at::allclose(on_device.weights[i], on_cpu.weights[i], tolerance, tolerance)) << i;
  }
}

}  // namespace tessera::device_test

// Weights that are kept as bytes: the same training at every stage and in every place, their bytes untouched, also by a
// checkpoint.
#include <gtest/gtest.h>

#include "tessera/kernels/nf4.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/nf4_product.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::nf4_weights_test {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using World = std::shared_ptr<comm::Group>;

// A quantized layer, its frozen bias, and a trained scale.
class QuantizedBlock : public nn::UnitModule<QuantizedBlock> {
 public:
  QuantizedBlock() {
    linear = register_module("linear", std::make_shared<nn::Linear>(test::kWidth, test::kWidth));
    linear->quantize();
    linear->bias.requires_grad_(false);
    scale = register_parameter("scale", test::Block::values({test::kWidth}, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(linear->forward(x * scale)); }

  std::shared_ptr<nn::Linear> linear;
  at::Tensor scale;
};

class Quantized : public test::ToyModel {
 public:
  Quantized() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<QuantizedBlock>()));
    }
  }
  at::Tensor loss(const test::ToyInput& input) override {
    at::Tensor y = input.x.to(blocks[0]->scale.scalar_type());
    for (const auto& block : blocks) y = run(block, y);
    return test::mean_square(y).to(at::kFloat);
  }
  std::vector<std::shared_ptr<QuantizedBlock>> blocks;
};

at::Tensor weight_of(const std::string& name) {
  return test::Block::values({test::kWidth, test::kWidth}, static_cast<int>(name.at(5) - '0')) * 0.8;
}

const kernels::Nf4Part kWhole = kernels::Nf4Part::whole(test::kWidth, test::kWidth);

kernels::Nf4 bytes_of(const std::string& name) { return nn::quantized(weight_of(name)); }

void fill(const std::string& name, const at::Tensor& value) {
  if (value.scalar_type() != at::kByte) return void(value.copy_(test::Block::values(value.sizes().vec(), 5)));
  value.copy_(name.ends_with(nn::kNestedScales) ? bytes_of(name).nested : bytes_of(name).blocks);
}

config::DsConfig config_of(int stage, int ranks, const json& more) {
  json all = {{"train_micro_batch_size_per_gpu", 12 / ranks},
              {"zero_optimization", {{"stage", stage}, {"stage3_max_live_parameters", 0}}},
              {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}}};
  all.merge_patch(more);
  return config::parse_ds_config(all, "the test", {.data_parallel_size = ranks});
}

std::unique_ptr<ModelEngine<Quantized>> engine_of(int stage, const World& world, const json& more = json::object()) {
  return initialize(std::make_shared<Quantized>(), config_of(stage, world->size(), more),
                    {.world = world, .fill = fill});
}

void expect_bytes(ModelEngine<Quantized>& engine) {
  const Gathered whole(engine);
  for (size_t i = 0; i < engine.module().blocks.size(); ++i) {
    const at::Tensor& weight = engine.module().blocks[i]->linear->weight;
    ASSERT_EQ(weight.scalar_type(), at::kByte);
    const kernels::Nf4 want = bytes_of("block" + std::to_string(i));
    EXPECT_TRUE(at::equal(weight, want.blocks)) << i;
    EXPECT_TRUE(at::equal(engine.module().blocks[i]->linear->weight_nested, want.nested)) << i;
  }
}

TEST(Nf4Weights, TrainAlikeAtEveryStageAndInEveryPlace) {
  const TemporaryFolder folder;
  const json nvme = {{"device", "nvme"}, {"nvme_path", folder.path()}, {"max_in_cpu", 0}};
  for (const json& precision : {json::object(), json{{"bf16", {{"enabled", true}}}}}) {
    test::spawn_ranks(2, [&](const World& world) {
      std::vector<double> first;
      for (const int stage : {0, 1, 2, 3}) {
        const auto engine = engine_of(stage, world, precision);
        const std::vector<double> losses = test::take_steps(*engine, 4);
        if (stage == 0) first = losses;
        EXPECT_EQ(losses, first) << stage;
        EXPECT_NE(losses.front(), losses.back());
        expect_bytes(*engine);
      }
      json on_disk = precision;
      on_disk["zero_optimization"]["offload_param"] = nvme;
      const auto engine = engine_of(3, world, on_disk);
      int64_t swapped = 0;
      for (const auto& unit : engine->sharded_model().units()) {
        if (unit->params().front().is_bytes() && unit->compute().swapped()) swapped += unit->compute().bytes();
      }
      EXPECT_EQ(swapped, 3 * 96);  // of 99 and 8 bytes each, of whole 32, in two shards of whole 32
      EXPECT_EQ(test::take_steps(*engine, 4), first);
      expect_bytes(*engine);
    });
  }
}

// W itself, dequantized, in an ordinary layer.
TEST(Nf4Weights, TheProductIsThatOfTheDequantizedWeight) {
  const nn::Nf4Weight kept{.bytes = bytes_of("block1"), .part = kWhole};
  const at::Tensor weight = nn::dequantized(kept, at::kFloat);
  EXPECT_FALSE(at::equal(weight, weight_of("block1")));
  const at::Tensor bias = test::Block::values({test::kWidth}, 5);
  const auto leaf = [] { return test::Block::values({2, 3, test::kWidth}, 4).requires_grad_(true); };
  const at::Tensor x = leaf(), same = leaf();
  const at::Tensor y = nn::nf4_product(x, kept, bias);
  const at::Tensor want = at::linear(same, weight, bias);
  EXPECT_TRUE(at::equal(y, want));
  y.square().sum().backward();
  want.square().sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), same.grad()));
}

TEST(Nf4Weights, ACheckpointOfAllParametersHasTheBytes) {
  const TemporaryFolder folder;
  test::spawn_ranks(2, [&](const World& world) {
    const auto saved = engine_of(3, world);
    test::take_steps(*saved, 2);
    saved->save_checkpoint(folder.path(), "two", json::object());
    const std::vector<double> went_on = test::take_steps(*saved, 2);
    for (const int stage : {0, 3}) {
      const auto zeros = [](const std::string&, const at::Tensor& value) { value.zero_(); };
      const auto loaded = initialize(std::make_shared<Quantized>(), config_of(stage, world->size(), json::object()),
                                     {.world = world, .fill = zeros});
      ASSERT_TRUE(loaded->load_checkpoint(folder.path(), "two"));
      expect_bytes(*loaded);
      EXPECT_EQ(test::take_steps(*loaded, 2), went_on) << stage;
    }
  });
}

TEST(Nf4Weights, ACheckpointMayLeaveTheBytesOut) {
  const TemporaryFolder folder;
  test::spawn_ranks(2, [&](const World& world) {
    const auto saved = engine_of(3, world);
    test::take_steps(*saved, 2);
    saved->save_checkpoint(folder.path(), "two", json::object(), {.bytes = false});
    const std::vector<double> went_on = test::take_steps(*saved, 2);
    for (const int stage : {0, 3}) {
      const auto loaded = engine_of(stage, world);
      EXPECT_THROW(loaded->load_checkpoint(folder.path(), "two"), Error);
      ASSERT_TRUE(loaded->load_checkpoint(folder.path(), "two", {.bytes = false}));
      expect_bytes(*loaded);
      EXPECT_EQ(test::take_steps(*loaded, 2), went_on) << stage;
    }
    saved->save_checkpoint(folder.path(), "all", json::object());
    EXPECT_THROW(saved->load_checkpoint(folder.path(), "all", {.bytes = false}), Error);  // the model lacks them
  });
}

}  // namespace
}  // namespace tessera::nf4_weights_test

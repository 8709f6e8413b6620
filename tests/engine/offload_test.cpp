// Training state that rests on disk: the same bits as in memory, with every optimizer, stage and dtype, and nothing
// left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/zero/memory_budget.h"
#include "tests/engine/checkpoint_runs.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::offload_test {
namespace {

using nlohmann::json;
using test::TemporaryFolder;
using testing::HasSubstr;

constexpr int64_t kWide = 100;

// A unit of 3 * 100 * 100 + 100 elements: several tiles of 2048 on each rank, the last of them short.
class WideBlock : public nn::UnitModule<WideBlock> {
 public:
  explicit WideBlock(int seed) {
    for (int i = 0; i < 3; ++i) {
      weights.push_back(
          register_parameter("weight" + std::to_string(i), test::Block::values({kWide, kWide}, seed + i) * 0.3));
    }
    bias = register_parameter("bias", test::Block::values({kWide}, seed + 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (const at::Tensor& weight : weights) y = at::tanh(at::matmul(y, weight) + bias);
    return y;
  }
  std::vector<at::Tensor> weights;
  at::Tensor bias;
};

class WideModel : public torch::nn::Module {
 public:
  WideModel() {
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<WideBlock>(10 * i)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : blocks) x = (*block)(x);
    return x.to(at::kFloat).square().mean();
  }
  std::vector<std::shared_ptr<WideBlock>> blocks;
};

// A decoder as in GPT-2: layer norms before causal attention and the feed-forward net, the head tied to the embedding.
class DecoderBlock : public nn::UnitModule<DecoderBlock> {
 public:
  explicit DecoderBlock(int seed) {
    const auto parameter = [&](const std::string& name, std::vector<int64_t> shape) {
      return register_parameter(name, test::Block::values(std::move(shape), seed++) * 0.2);
    };
    norm1 = register_parameter("norm1", at::ones({kWide}));
    qkv = parameter("qkv", {3 * kWide, kWide});
    out = parameter("out", {kWide, kWide});
    norm2 = register_parameter("norm2", at::ones({kWide}));
    up = parameter("up", {2 * kWide, kWide});
    down = parameter("down", {kWide, 2 * kWide});
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto heads = [](const at::Tensor& t) { return t.view({t.size(0), t.size(1), 4, kWide / 4}).transpose(1, 2); };
    const auto parts = at::linear(at::layer_norm(x, {kWide}, norm1), qkv).chunk(3, 2);
    const at::Tensor attended = at::scaled_dot_product_attention(
        heads(parts[0].contiguous()), heads(parts[1].contiguous()), heads(parts[2].contiguous()), {}, 0.0, true);
    const at::Tensor y = x + at::linear(attended.transpose(1, 2).reshape(x.sizes()), out);
    return y + at::linear(at::gelu(at::linear(at::layer_norm(y, {kWide}, norm2), up)), down);
  }
  at::Tensor norm1, qkv, out, norm2, up, down;
};

class Embedding : public nn::UnitModule<Embedding> {
 public:
  explicit Embedding(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
  at::Tensor forward(const at::Tensor& tokens) { return at::embedding(weight, tokens); }
  at::Tensor weight;
};

class Head : public nn::UnitModule<Head> {
 public:
  explicit Head(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};

class Decoder : public torch::nn::Module {
 public:
  static constexpr int64_t kVocabulary = 64;

  Decoder() {
    embedding = register_module("embedding", std::make_shared<Embedding>(test::Block::values({kVocabulary, kWide}, 1)));
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<DecoderBlock>(10 * i + 2)));
    }
    head = register_module("head", std::make_shared<Head>(embedding->weight));
  }
  // Tokens that follow from x, each of which is to be told from those before it.
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor tokens = x.to(at::kFloat).mul(1000).to(at::kLong).remainder(kVocabulary);
    at::Tensor y = (*embedding)(tokens);
    for (const auto& block : blocks) y = (*block)(y);
    const at::Tensor logits = (*head)(y).to(at::kFloat).slice(1, 0, -1);
    return at::cross_entropy_loss(logits.reshape({-1, kVocabulary}), tokens.slice(1, 1).reshape({-1}));
  }
  std::shared_ptr<Embedding> embedding;
  std::vector<std::shared_ptr<DecoderBlock>> blocks;
  std::shared_ptr<Head> head;
};

struct Trained {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> weights;
  int64_t in_memory = 0, on_disk = 0;
};

template <class Model = WideModel>
Trained train(const json& config, const std::shared_ptr<comm::Group>& world, int steps) {
  const auto engine =
      initialize(std::make_shared<Model>(),
                 config::parse_ds_config(config, "the test", {.data_parallel_size = world->size()}), {.world = world});
  Trained trained;
  const int accumulation = config.value("gradient_accumulation_steps", 1);
  for (int micro = 0; micro < steps * accumulation; ++micro) {
    const at::Tensor x = at::cos(at::arange(2 * kWide, at::kFloat) * 0.3 + micro + 100 * world->rank());
    const at::Tensor loss = engine->forward(x.view({2, kWide}).to(engine->sharded_model().policy().compute_dtype));
    engine->backward(loss);
    engine->step();
    trained.losses.push_back(loss.item<double>());
    trained.norms.push_back(engine->get_global_grad_norm());
  }
  trained.in_memory = engine->model_state_bytes();
  trained.on_disk = engine->offloaded_bytes();
  trained.weights = test::weights_of(*engine);
  return trained;
}

// A norm that is not a number is the same as another.
std::vector<double> comparable(std::vector<double> values) {
  for (double& value : values) value = std::isnan(value) ? -1 : value;
  return values;
}

void expect_same_bits(const Trained& got, const Trained& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(comparable(got.norms), comparable(want.norms));
  ASSERT_EQ(got.weights.size(), want.weights.size());
  for (size_t i = 0; i < want.weights.size(); ++i) EXPECT_TRUE(at::equal(got.weights[i], want.weights[i])) << i;
}

json config_of(int stage, const std::string& optimizer, const json& more) {
  json config = {{"train_micro_batch_size_per_gpu", 2},
                 {"gradient_clipping", 0.5},
                 {"zero_optimization", {{"stage", stage}, {"sub_group_size", 2048}, {"stage3_max_live_parameters", 0}}},
                 {"optimizer", {{"type", optimizer}, {"params", {{"lr", 0.01}}}}}};
  config.merge_patch(more);
  return config;
}

json nvme(const std::filesystem::path& folder, json more = json::object()) {
  json block = {{"device", "nvme"}, {"nvme_path", folder.string()}};
  block.merge_patch(more);
  return block;
}

struct Scenario {
  std::string name;
  std::string optimizer = "AdamW";
  json more = json::object();
  int steps = 8;
};

class Offloaded : public testing::TestWithParam<Scenario> {};

TEST_P(Offloaded, HasTheBitsOfAllInMemory) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2}) {
    test::spawn_ranks(ranks, [&](const std::shared_ptr<comm::Group>& world) {
      for (const int stage : {1, 2, 3}) {
        const json in_memory = config_of(stage, GetParam().optimizer, GetParam().more);
        const Trained want = train(in_memory, world, GetParam().steps);
        EXPECT_EQ(want.on_disk, 0);
        for (const std::string what : {"host", "optimizer", "ahead", "parameters", "both"}) {
          if (stage < 3 && (what == "parameters" || what == "both")) continue;
          SCOPED_TRACE(what + " at stage " + std::to_string(stage) + " on " + std::to_string(ranks));
          json config = in_memory;
          json& zero = config["zero_optimization"];
          if (what == "host") zero["offload_optimizer"] = {{"device", "cpu"}};
          if (what == "optimizer") zero["offload_optimizer"] = nvme(folder.path());
          if (what == "ahead" || what == "both") {
            zero["offload_optimizer"] = nvme(folder.path(), {{"pipeline_read", true}, {"pipeline_write", true}});
          }
          if (what == "parameters" || what == "both") zero["offload_param"] = nvme(folder.path(), {{"max_in_cpu", 0}});
          if (what == "both") zero.erase("stage3_max_live_parameters");
          const Trained got = train(config, world, GetParam().steps);
          expect_same_bits(got, want);
          EXPECT_EQ(got.in_memory + got.on_disk, want.in_memory);
          EXPECT_EQ(got.on_disk == 0, what == "host" || (GetParam().name == "SGD" && stage == 1));
          EXPECT_EQ(got.in_memory == 0, what == "both");
        }
      }
    });
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

INSTANTIATE_TEST_SUITE_P(
    All, Offloaded,
    testing::Values(Scenario{.name = "AdamW", .steps = 30}, Scenario{"Lamb", "Lamb"}, Scenario{"Muon", "Muon"},
                    Scenario{"Lion", "Lion"}, Scenario{"SGD", "SGD"},
                    Scenario{"Bf16", "AdamW", {{"bf16", {{"enabled", true}}}}},
                    Scenario{"Bf16Adagrad", "Adagrad", {{"bf16", {{"enabled", true}}}}},
                    Scenario{"Fp16", "Adam", {{"fp16", {{"enabled", true}, {"initial_scale_power", 24}}}}},
                    Scenario{"Accumulation",
                             "AdamW",
                             {{"gradient_accumulation_steps", 3},
                              {"bf16", {{"enabled", true}}},
                              {"data_types", {{"grad_accum_dtype", "fp32"}}}}}),
    [](const auto& info) { return info.param.name; });

TEST(Offload, HasTheBitsOfADecoderInMemory) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2}) {
    test::spawn_ranks(ranks, [&](const std::shared_ptr<comm::Group>& world) {
      json config = config_of(3, "AdamW", {{"bf16", {{"enabled", true}}}});
      const Trained want = train<Decoder>(config, world, 30);
      config["zero_optimization"]["offload_optimizer"] = nvme(folder.path(), {{"pipeline_read", true}});
      config["zero_optimization"]["offload_param"] = nvme(folder.path(), {{"max_in_cpu", 0}});
      expect_same_bits(train<Decoder>(config, world, 30), want);
    });
  }
}

TEST(Offload, MaxInCpuKeepsTheFirstUnitsInMemory) {
  const TemporaryFolder folder;
  const auto world = comm::Group::alone();
  json config = config_of(3, "AdamW", json::object());
  const auto on_disk = [&](int64_t max_in_cpu) {
    config["zero_optimization"]["offload_param"] = nvme(folder.path(), {{"max_in_cpu", max_in_cpu}});
    return train(config, world, 1).on_disk;
  };
  constexpr int64_t kUnit = (3 * kWide * kWide + kWide) * 4;
  EXPECT_EQ(on_disk(1'000'000), 0);
  EXPECT_NEAR(on_disk(0), 3 * kUnit, 3 * 32 * 4 * 4);  // the padding
  EXPECT_NEAR(on_disk(31'000), 2 * kUnit, 2 * 32 * 4 * 4);
}

TEST(Offload, RatioLeavesTheLastUnitsInMemory) {
  const TemporaryFolder folder;
  const auto world = comm::Group::alone();
  json config = config_of(3, "AdamW", json::object());
  const Trained want = train(config, world, 5);
  constexpr int64_t kUnit = (3 * kWide * kWide + kWide) * 3 * 4;  // two moments and the gradient, fp32
  for (const auto& [ratio, units] : {std::pair(0.0, 0), std::pair(0.5, 2), std::pair(1.0, 3)}) {
    config["zero_optimization"]["offload_optimizer"] = nvme(folder.path(), {{"ratio", ratio}});
    const Trained got = train(config, world, 5);
    expect_same_bits(got, want);
    EXPECT_NEAR(got.on_disk, units * kUnit, units * 32 * 4 * 3 * 4) << ratio;
  }
}

TEST(Offload, SavesAndLoadsWhatRestsOnDisk) {
  const TemporaryFolder folder;
  json in_memory = config_of(3, "AdamW", {{"bf16", {{"enabled", true}}}});
  json on_disk = in_memory;
  on_disk["zero_optimization"]["offload_optimizer"] = nvme(folder.path());
  on_disk["zero_optimization"]["offload_param"] = nvme(folder.path(), {{"max_in_cpu", 0}});
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    const auto make = [&](const json& config) {
      return initialize(std::make_shared<WideModel>(),
                        config::parse_ds_config(config, "the test", {.data_parallel_size = 2}), {.world = world});
    };
    const auto steps = [&](ModelEngine<WideModel>& engine) {
      std::vector<double> losses;
      for (int i = 0; i < 5; ++i) {
        const at::Tensor x = at::cos(at::arange(2 * kWide, at::kFloat) * 0.3 + engine.global_steps());
        const at::Tensor loss = engine.forward(x.view({2, kWide}).to(at::kBFloat16));
        engine.backward(loss);
        engine.step();
        losses.push_back(loss.item<double>());
      }
      return losses;
    };
    const auto engine = make(on_disk);
    steps(*engine);
    const std::string saved = folder.path() / "saved";
    engine->save_checkpoint(saved, "", json::object(), {.in_background = true});
    engine->finish_saving();
    const std::vector<double> want = steps(*engine);
    for (const json& config : {on_disk, in_memory}) {
      const auto resumed = make(config);
      steps(*resumed);
      ASSERT_TRUE(resumed->load_checkpoint(saved));
      EXPECT_EQ(steps(*resumed), want);
    }
  });
}

// In bf16: a tile of 2048 elements has 4 bytes of weight, 2 of gradient, 2 of compute weight and 8 of moments;
// gradients leave and parameters come in as whole shards of 2.
TEST(Offload, KnowsTheMostThatItsBuffersTake) {
  const TemporaryFolder folder;
  json config = config_of(3, "AdamW", {{"bf16", {{"enabled", true}}}});
  config["zero_optimization"]["offload_optimizer"] =
      nvme(folder.path(), {{"pipeline_read", true}, {"pipeline_write", true}});
  config["zero_optimization"]["offload_param"] = nvme(folder.path(), {{"max_in_cpu", 0}, {"buffer_count", 4}});
  const auto engine = initialize(std::make_shared<WideModel>(), config::parse_ds_config(config, "the test", {}),
                                 {.world = comm::Group::alone()});
  zero::ShardedModel& model = engine->sharded_model();
  const auto shard = static_cast<int64_t>(storage::whole_pages(model.units()[0]->layout().numel() * 2));
  const int64_t tiles = 3 * 2048 * (4 + 2 + 2 + 8);
  EXPECT_EQ(zero::memory_budget(model, /*cuts=*/true).buffers, tiles + 2 * shard + (4 + 1) * shard);

  engine->backward(engine->forward(at::ones({2, kWide}, at::kBFloat16)));
  engine->step();
  size_t taken = 0;
  for (const zero::TileBuffers& tile : model.tile_buffers()) {
    for (const auto& part : tile.parts) taken += part.buffer.capacity();
  }
  EXPECT_EQ(taken, static_cast<size_t>(tiles));
}

std::string error_of(const json& config) {
  try {
    train(config, comm::Group::alone(), 1);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Offload, NamesAFolderThatCannotBeUsed) {
  const TemporaryFolder folder;
  json config = config_of(3, "AdamW", json::object());
  config["zero_optimization"]["offload_optimizer"] = nvme(folder.path() / "missing");
  EXPECT_THAT(error_of(config), AllOf(HasSubstr("No such file or directory (errno 2)"),
                                      HasSubstr("zero_optimization.offload_optimizer.nvme_path: "),
                                      HasSubstr("/missing"), HasSubstr("is writable")));
  config["zero_optimization"]["offload_optimizer"] = nvme("/proc");
  EXPECT_THAT(error_of(config), AllOf(HasSubstr("errno"), HasSubstr("/proc")));
}

TEST(Offload, FindsOutThatTheDiskIsFullBeforeTraining) {
  const TemporaryFolder folder;
  json config = config_of(3, "AdamW", json::object());
  config["zero_optimization"]["offload_optimizer"] = nvme(folder.path());
  const auto outcomes = test::outcomes_of_ranks(1, [&](const std::shared_ptr<comm::Group>&) {
    const rlimit small{1 << 20, 1 << 20};  // what a file may have: less than the states take
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    const std::string error = error_of(config);
    EXPECT_THAT(error, AllOf(HasSubstr("no space"), HasSubstr("File too large"), HasSubstr(folder.path().string())));
  });
  EXPECT_EQ(outcomes[0].exit_code, 0) << outcomes[0].output;
}

TEST(Offload, RefusesACompressedOptimizer) {
  const TemporaryFolder folder;
  json config = config_of(1, "OneBitAdam", json::object());
  config["zero_optimization"]["offload_optimizer"] = nvme(folder.path());
  EXPECT_THAT(error_of(config), HasSubstr("keeps its state in memory"));
}

}  // namespace
}  // namespace tessera::offload_test

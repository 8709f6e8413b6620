// Models as LibTorch's documentation has them: an Impl, TORCH_MODULE, and the holder handed round by value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <fstream>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/toy_models.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::module_holders_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// y = x W + b, and how often it ran.
struct LayerImpl : nn::UnitModule<LayerImpl> {
  explicit LayerImpl(int seed = 0) {
    weight = register_parameter("weight", test::Block::values({test::kWidth, test::kWidth}, seed));
  }
  at::Tensor forward(const at::Tensor& x) {
    ++calls;
    return at::tanh(at::matmul(x, weight));
  }
  at::Tensor weight;
  int calls = 0;
};
TORCH_MODULE(Layer);

// A holder that is a member, some in a list and some in a Sequential: the ways in which LibTorch's own models call
// theirs.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("list", list);
    register_module("row", row);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = first(x);
    for (const auto& layer : *list) y = Layer(std::dynamic_pointer_cast<LayerImpl>(layer))(y);
    return test::mean_square(row->forward(y));
  }
  Layer first{1};
  torch::nn::ModuleList list{Layer(2), Layer(3)};
  torch::nn::Sequential row{Layer(4), Layer(5)};
};
TORCH_MODULE(Net);

json config_at(int stage) {
  return {{"train_micro_batch_size_per_gpu", 2},
          {"zero_optimization", {{"stage", stage}, {"stage3_param_persistence_threshold", 0}}},
          {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}}};
}

config::DsConfig parsed(const json& config, int ranks) {
  return config::parse_ds_config(config, "the test", {.data_parallel_size = ranks});
}

template <class AnyEngine>
std::vector<double> three_losses(AnyEngine& engine) {
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor loss = engine.forward(at::ones({2, test::kWidth}) * (step + engine.world().rank()));
    losses.push_back(loss.template item<double>());
    engine.backward(loss);
    engine.step();
  }
  return losses;
}

TEST(ModuleHolders, AHolderTrainsAsItsModuleDoes) {
  const auto shared = std::make_shared<NetImpl>();
  const auto expected = three_losses(*initialize(shared, parsed(config_at(0), 1)));
  Net net;
  const auto engine = initialize(net, parsed(config_at(0), 1));
  EXPECT_EQ(three_losses(*engine), expected);
  EXPECT_EQ(&engine->module(), net.get());
}

TEST(ModuleHolders, AHolderAndAConfigurationFileAreEnough) {
  const test::TemporaryFolder folder;
  const std::string path = (folder.path() / "ds_config.json").string();
  std::ofstream(path) << config_at(3);
  Net net;
  auto engine = initialize(net, path, {.world = comm::Group::alone()});
  EXPECT_EQ(three_losses(*engine).size(), 3u);
}

TEST(ModuleHolders, HeldUnitsAreGatheredOneAtATimeWhoeverCallsThem) {
  const auto expected = three_losses(*initialize(Net(), parsed(config_at(0), 1)));
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    Net net;
    std::vector<double> sharded, whole;
    {
      const auto engine = initialize(net, parsed(config_at(3), 2), {.world = world});
      EXPECT_EQ(engine->sharded_model().units().size(), 5u);
      sharded = three_losses(*engine);
      EXPECT_EQ(net->first->calls, 3);
    }
    whole = three_losses(*initialize(Net(), parsed(config_at(0), 2), {.world = world}));
    EXPECT_EQ(sharded, whole);
    if (world->rank() == 0) {
      EXPECT_EQ(sharded.front(), expected.front());
    }
  });
}

TEST(ModuleHolders, AnEmptyHolderIsRefused) {
  const Net empty = nullptr;
  try {
    initialize(empty, parsed(config_at(0), 1));
    FAIL() << "an empty holder was taken";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no model to train"));
  }
}

// What LibTorch's own holder does, for code that is written against it.
TEST(ModuleHolders, AUnitsHolderIsConstructedAndReadAsAnyOther) {
  const Layer by_arguments(7), by_pointer(std::make_shared<LayerImpl>(7));
  Layer empty = nullptr, copy = by_arguments;
  EXPECT_TRUE(empty.is_empty());
  EXPECT_FALSE(empty);
  EXPECT_THROW(empty.get(), c10::Error);
  EXPECT_THROW(empty(at::ones({1, test::kWidth})), c10::Error);
  EXPECT_EQ(copy.get(), by_arguments.get());
  EXPECT_EQ(copy.ptr(), by_arguments.ptr());
  EXPECT_TRUE(at::equal(by_pointer->weight, (*by_arguments).weight));
  torch::nn::Sequential row(by_arguments);
  EXPECT_THROW(row->forward(1.5), c10::Error);
  EXPECT_EQ(row->at<LayerImpl>(0).weight.data_ptr(), by_arguments->weight.data_ptr());
}

}  // namespace
}  // namespace tessera::module_holders_test

// A torch::nn::Sequential over the stages of a pipeline: the training of one process, under names that any pipeline
// has.
#include "tessera/engine/layer_pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "tessera/base/error.h"
#include "tessera/config/ds_config.h"
#include "tests/engine/toy_models.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::layer_pipeline_test {
namespace {

using test::kWidth;
using test::spawn_ranks;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kSteps = 6, kRows = 8;  // of a step, a micro batch each

// The holder of a toy's block.
struct LayerImpl : nn::UnitModule<LayerImpl> {
  explicit LayerImpl(int seed = 0) {
    weight = register_parameter("weight", test::Block::values({kWidth, kWidth}, seed));
    bias = register_parameter("bias", test::Block::values({kWidth}, seed + 1));
  }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(at::matmul(x, weight) + bias); }
  at::Tensor weight, bias;
};
TORCH_MODULE(Layer);

torch::nn::Sequential layers() { return torch::nn::Sequential(Layer(1), Layer(4), Layer(9), Layer(16), Layer(25)); }

at::Tensor row_of(int step, int row) {
  return at::cos(at::arange(kWidth, at::kFloat) * 0.3 + step % 3 + 0.1 * row).view({1, kWidth});
}

nlohmann::json config_at(int stage, int micro_batches) {
  return {{"train_micro_batch_size_per_gpu", 1},
          {"gradient_accumulation_steps", micro_batches},
          {"gradient_clipping", 0},
          {"zero_optimization", {{"stage", stage}, {"stage3_param_persistence_threshold", 0}}},
          {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.02}, {"weight_decay", 0.01}}}}}};
}

struct Way {
  std::string schedule = "1f1b";
  int ranks = 2;
  int data = 1;
  int stage = 0;
  std::vector<int64_t> bounds = {};
};

std::shared_ptr<comm::Mesh> mesh_of(const std::shared_ptr<comm::Group>& world, const Way& way) {
  return std::make_shared<comm::Mesh>(
      world, layout::MeshShape({{layout::kPipelineAxis, way.ranks}, {layout::kShardAxis, way.data}}));
}

std::unique_ptr<LayerPipeline> pipeline_of(const std::shared_ptr<comm::Group>& world, const Way& way) {
  return std::make_unique<LayerPipeline>(layers(), config_at(way.stage, kRows / way.data),
                                         InitializeOptions{.mesh = mesh_of(world, way)},
                                         LayerPipelineOptions{.schedule = way.schedule, .bounds = way.bounds});
}

// The rows of a step that are this rank's.
LayerPipeline::Inputs rows_of(const comm::Group& world, const Way& way, int step) {
  const int first = world.rank() % way.data * (kRows / way.data);  // the mesh's last axis
  return [first, step](int micro_batch) { return row_of(step, first + micro_batch); };
}

at::Tensor loss_of(const at::Tensor& output, int /*micro_batch*/) { return test::mean_square(output); }

// Steps from `first` on: the loss of each, which every rank has.
std::vector<double> train(const std::shared_ptr<comm::Group>& world, const Way& way, int first, int last,
                          const std::string& load = "", const std::string& save = "") {
  const auto pipeline = pipeline_of(world, way);
  if (!load.empty()) {
    EXPECT_TRUE(pipeline->engine().load_checkpoint(load).has_value());
  }
  std::vector<double> losses;
  for (int step = first; step < last; ++step) {
    losses.push_back(pipeline->train_batch(rows_of(*world, way, step), loss_of));
  }
  if (!save.empty()) pipeline->engine().save_checkpoint(save);
  return losses;
}

// In plain LibTorch, in one process.
std::vector<double> plainly() {
  torch::nn::Sequential model = layers();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.02).weight_decay(0.01));
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    at::Tensor loss = at::zeros({});
    for (int row = 0; row < kRows; ++row) {
      loss = loss + test::mean_square(model->forward(row_of(step, row))) / kRows;
    }
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5 * std::abs(expected[i])) << i;
}

TEST(LayerPipeline, TrainsAsOneProcessAtEveryZeroStage) {
  spawn_ranks(4, [](const std::shared_ptr<comm::Group>& world) {
    const std::vector<double> expected = plainly();
    EXPECT_LT(expected.back(), 0.9 * expected.front());
    for (const int stage : {0, 1, 2, 3}) {
      expect_near(train(world, {.ranks = 2, .data = 2, .stage = stage}, 0, kSteps), expected);
    }
    expect_near(train(world, {.ranks = 4, .bounds = {0, 1, 2, 4, 5}}, 0, kSteps), expected);
  });
}

TEST(LayerPipeline, TrainsByOtherSchedulesToo) {
  spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    const std::vector<double> expected = plainly();
    for (const char* const schedule : {"gpipe", "interleaved", "zb1p", "dualpipev"}) {
      expect_near(train(world, {.schedule = schedule}, 0, kSteps), expected);
    }
  });
}

TEST(LayerPipeline, ACheckpointGoesOnOverAnotherPipeline) {
  const test::TemporaryFolder folder;
  spawn_ranks(4, [&](const std::shared_ptr<comm::Group>& world) {
    const std::vector<double> expected = plainly();
    const std::string place = folder.path().string();
    std::vector<double> losses = train(world, {.ranks = 2, .data = 2, .stage = 3}, 0, 3, "", place);
    const std::vector<double> others = train(world, {.ranks = 4, .stage = 1}, 3, kSteps, place);
    losses.insert(losses.end(), others.begin(), others.end());
    expect_near(losses, expected);
  });
}

TEST(LayerPipeline, EvaluatesAsOneProcess) {
  spawn_ranks(4, [](const std::shared_ptr<comm::Group>& world) {
    torch::nn::Sequential whole = layers();
    double expected = 0;
    for (int row = 0; row < kRows; ++row) expected += test::mean_square(whole->forward(row_of(7, row))).item<double>();
    for (const int stage : {0, 3}) {
      const Way way{.ranks = 2, .data = 2, .stage = stage};
      const auto pipeline = pipeline_of(world, way);
      for (int time = 0; time < 2; ++time) {
        expect_near({pipeline->eval_batch(rows_of(*world, way, 7), loss_of)}, {expected / kRows});
      }
      expect_near({pipeline->train_batch(rows_of(*world, way, 7), loss_of)}, {expected / kRows});
      EXPECT_LT(pipeline->eval_batch(rows_of(*world, way, 7), loss_of, 4), expected / kRows);
    }
  });
}

TEST(LayerPipeline, IsBalancedByParametersAndHasTheNamesOfTheWhole) {
  spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    torch::nn::Sequential model(torch::nn::Linear(10, 10), torch::nn::Linear(10, 10), torch::nn::Linear(10, 90));
    const LayerPipeline pipeline(model, config_at(0, 2), {.mesh = mesh_of(world, {})});
    EXPECT_THAT(pipeline.bounds(), ElementsAre(0, 2, 3));
  });
}

void expect_refused(const torch::nn::Sequential& model, int ranks, const std::vector<int64_t>& bounds,
                    const std::string& why) {
  spawn_ranks(ranks, [&](const std::shared_ptr<comm::Group>& world) {
    std::string text;
    try {
      const LayerPipeline pipeline(model, config_at(0, 4), {.mesh = mesh_of(world, {.ranks = ranks})},
                                   {.bounds = bounds});
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_THAT(text, HasSubstr(why));
  });
}

TEST(LayerPipeline, WhatDoesNotGoRoundIsRefused) {
  expect_refused(layers(), 6, {}, "6 stages are more than there are layers, 5");
  for (const std::vector<int64_t>& bounds : std::vector<std::vector<int64_t>>{{0, 5}, {0, 3, 4}, {0, 0, 5}}) {
    expect_refused(layers(), 2, bounds, "give 3 numbers that rise from 0 to 5");
  }
  const Layer both(3);
  expect_refused(torch::nn::Sequential(both, Layer(4), both), 2, {}, "layers 0 and 2 have a parameter in common");
  EXPECT_THROW(LayerPipeline(layers(), config_at(0, 4), {}), Error);  // no mesh
}

}  // namespace
}  // namespace tessera::layer_pipeline_test

// A torch::nn::Sequential over the stages of a pipeline: the training of one process, under names that any pipeline
// has.
#include "tessera/engine/layer_stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "tessera/base/error.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/pipeline_run.h"
#include "tests/engine/toy_models.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::layer_stages_test {
namespace {

using engine::LayerStages;
using engine::PipelineRun;
using engine::StagePass;
using pipeline::make_schedule;
using pipeline::Schedule;
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

// Steps from `first` on: the loss of each, of all data-parallel ranks; known where the last stage is.
std::vector<double> train(const std::shared_ptr<comm::Group>& world, const Way& way, int first, int last,
                          const std::string& load = "", const std::string& save = "") {
  const auto mesh = std::make_shared<comm::Mesh>(
      world, layout::MeshShape({{layout::kPipelineAxis, way.ranks}, {layout::kShardAxis, way.data}}));
  const int micro = kRows / way.data;
  const Schedule schedule = make_schedule(way.schedule, {.ranks = way.ranks, .micro_batches = micro});
  const LayerStages stages(layers(), *mesh, schedule, way.bounds);
  const auto engine = initialize(
      stages.own(), config::parse_ds_config(config_at(way.stage, micro), "the test", {.data_parallel_size = way.data}),
      {.mesh = mesh, .specify = stages.specify()});
  if (!load.empty()) {
    EXPECT_TRUE(engine->load_checkpoint(load).has_value());
  }
  PipelineRun run(*engine, *mesh, way.schedule);
  std::vector<double> losses;
  for (int step = first; step < last; ++step) {
    at::Tensor sum = at::zeros({1}, at::kDouble);
    run.train(micro, [&](const StagePass& pass) -> std::vector<at::Tensor> {
      const int row = mesh->coordinate(layout::kShardAxis) * micro + pass.micro_batch;
      const at::Tensor x = stages.run(pass, row_of(step, row));
      if (!run.is_last(pass.stage)) return {x};
      const at::Tensor loss = test::mean_square(x);
      sum += loss.detach().to(at::kDouble);
      return {loss};
    });
    engine->step();
    run.ranks_of_losses().start_all_reduce(sum, 1.0 / kRows, "losses").finish();
    losses.push_back(sum.item<double>());
  }
  if (!save.empty()) engine->save_checkpoint(save);
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

TEST(LayerStages, TrainAsOneProcessAtEveryZeroStage) {
  spawn_ranks(4, [](const std::shared_ptr<comm::Group>& world) {
    const std::vector<double> expected = plainly();
    EXPECT_LT(expected.back(), 0.9 * expected.front());
    for (const int stage : {0, 1, 2, 3}) {
      expect_near(train(world, {.ranks = 2, .data = 2, .stage = stage}, 0, kSteps), expected);
    }
    expect_near(train(world, {.ranks = 4, .bounds = {0, 1, 2, 4, 5}}, 0, kSteps), expected);
  });
}

TEST(LayerStages, OfOtherSchedulesToo) {
  spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    const std::vector<double> expected = plainly();
    for (const char* const schedule : {"gpipe", "interleaved", "zb1p", "dualpipev"}) {
      expect_near(train(world, {.schedule = schedule}, 0, kSteps), expected);
    }
  });
}

TEST(LayerStages, ACheckpointGoesOnOverAnotherPipeline) {
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

std::string refusal(const torch::nn::Sequential& model, int ranks, std::vector<int64_t> bounds) {
  const auto mesh = comm::Mesh::data_parallel(comm::Group::alone());
  try {
    const LayerStages stages(model, *mesh, make_schedule("1f1b", {.ranks = ranks, .micro_batches = 4}),
                             std::move(bounds));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(LayerStages, AreBalancedByParametersAndHaveTheNamesOfTheWhole) {
  const auto mesh = comm::Mesh::data_parallel(comm::Group::alone());
  torch::nn::Sequential model(torch::nn::Linear(10, 10), torch::nn::Linear(10, 10), torch::nn::Linear(10, 90));
  const LayerStages stages(model, *mesh, make_schedule("1f1b", {.ranks = 2, .micro_batches = 4}));
  EXPECT_THAT(stages.bounds(), ElementsAre(0, 2, 3));
  std::vector<std::string> names;
  for (const auto& item : stages.own()->named_parameters()) names.push_back(item.key());
  EXPECT_THAT(names, ElementsAre("0.weight", "0.bias", "1.weight", "1.bias"));
}

TEST(LayerStages, WhatDoesNotGoRoundIsRefused) {
  EXPECT_THAT(refusal(layers(), 6, {}), HasSubstr("6 stages are more than there are layers, 5"));
  EXPECT_THAT(refusal(layers(), 2, {0, 5}), HasSubstr("give 3 numbers that rise from 0 to 5"));
  EXPECT_THAT(refusal(layers(), 2, {0, 3, 4}), HasSubstr("give 3 numbers that rise from 0 to 5"));
  EXPECT_THAT(refusal(layers(), 2, {0, 0, 5}), HasSubstr("give 3 numbers that rise from 0 to 5"));
  const Layer both(3);
  EXPECT_THAT(refusal(torch::nn::Sequential(both, Layer(4), both), 2, {}),
              HasSubstr("layers 0 and 2 have a parameter in common"));
}

}  // namespace
}  // namespace tessera::layer_stages_test

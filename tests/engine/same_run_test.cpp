// Ranks that would train different things are told so when the engine is made, each with the first thing that differs;
// paths may differ.
#include "tessera/engine/same_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/dropout.h>

#include <string>

#include "tessera/base/error.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tests/engine/toy_models.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::same_run_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

config::DsConfig config_with(const json& more) {
  json config = {{"train_micro_batch_size_per_gpu", 2},
                 {"zero_optimization", {{"stage", 2}}},
                 {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}}};
  config.merge_patch(more);
  return config::parse_ds_config(config, "the test", {.data_parallel_size = 2});
}

class Net : public torch::nn::Module {
 public:
  explicit Net(double dropout = 0.1, at::ScalarType dtype = at::kFloat) {
    register_parameter("weight", at::ones({test::kWidth, 2}, dtype));
    drop = register_module("drop", torch::nn::Dropout(dropout));
  }
  at::Tensor forward(const at::Tensor& x) { return test::mean_square(drop(at::matmul(x, parameters()[0]))); }
  torch::nn::Dropout drop = nullptr;
};

template <class Initialize>
std::string error_of(const Initialize& initialize) {
  try {
    initialize();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.report().what;
  }
  return "no error";
}

// What both ranks say when rank 1 has this beside what rank 0 has.
void expect_refused(const json& of_rank_0, const json& of_rank_1, const std::string& what) {
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    const auto config = config_with(world->rank() == 0 ? of_rank_0 : of_rank_1);
    EXPECT_EQ(error_of([&] { initialize(std::make_shared<Net>(), config, {.world = world}); }), what);
  });
}

TEST(SameRun, ARankWithAnotherLearningRate) {
  expect_refused(
      json::object(), {{"optimizer", {{"params", {{"lr", 0.02}}}}}},
      "rank 1 has another configuration than rank 0: optimizer.params.lr = 0.02; rank 0: optimizer.params.lr = 0.01");
}

TEST(SameRun, ARankWithAnotherOptimizer) {
  expect_refused(
      json::object(), {{"optimizer", {{"type", "Lion"}}}},
      "rank 1 has another configuration than rank 0: optimizer.type = \"Lion\"; rank 0: optimizer.type = \"AdamW\"");
}

TEST(SameRun, ARankWithAnotherClipping) {
  expect_refused(
      {{"gradient_clipping", 0.5}}, json::object(),
      "rank 1 has another configuration than rank 0: gradient_clipping = 1.0; rank 0: gradient_clipping = 0.5");
}

TEST(SameRun, ARankWithAnotherStage) {
  expect_refused(json::object(), {{"zero_optimization", {{"stage", 3}}}},
                 "rank 1 has another configuration than rank 0: zero_optimization.stage = 3; rank 0: "
                 "zero_optimization.stage = 2");
}

TEST(SameRun, ARankWithAnotherMicroBatch) {
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    const auto config = config_with({{"train_micro_batch_size_per_gpu", 2 + world->rank()}});
    EXPECT_THAT(error_of([&] { initialize(std::make_shared<Net>(), config, {.world = world}); }),
                HasSubstr("train_batch_size = 6; rank 0: train_batch_size = 4"));
  });
}

TEST(SameRun, ARankThatOffloads) {
  const test::TemporaryFolder folder;
  const json offload = {{"device", "nvme"}, {"nvme_path", folder.path().string()}};
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    json more = json::object();
    if (world->rank() == 1) more = {{"zero_optimization", {{"offload_optimizer", offload}}}};
    EXPECT_THAT(error_of([&] { initialize(std::make_shared<Net>(), config_with(more), {.world = world}); }),
                AllOf(StartsWith("rank 1 has another configuration than rank 0"), HasSubstr("offload_optimizer")));
  });
}

TEST(SameRun, PathsMayDiffer) {
  const test::TemporaryFolder folders[2];
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    const json offload = {{"device", "nvme"}, {"nvme_path", folders[world->rank()].path().string()}};
    const auto config = config_with({{"zero_optimization", {{"offload_optimizer", offload}}}});
    auto engine = initialize(std::make_shared<Net>(), config, {.world = world});
    engine->backward(engine->forward(at::ones({2, test::kWidth})));
    engine->step();
    EXPECT_EQ(engine->global_steps(), 1);
  });
}

TEST(SameRun, ARankWithAnotherDropout) {
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    auto model = std::make_shared<Net>(world->rank() == 0 ? 0.1 : 0.2);
    EXPECT_EQ(error_of([&] { initialize(model, config_with(json::object()), {.world = world}); }),
              "rank 1 has another model than rank 0: dropout 'drop' of 0.2; rank 0: dropout 'drop' of 0.1");
  });
}

TEST(SameRun, ARankWithAnotherDtype) {
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    auto model = std::make_shared<Net>(0.1, world->rank() == 0 ? at::kFloat : at::kDouble);
    EXPECT_THAT(
        error_of([&] { initialize(model, config_with(json::object()), {.world = world}); }),
        AllOf(StartsWith("rank 1 has another model than rank 0: parameter 'weight'"), HasSubstr("dtype Double")));
  });
}

TEST(SameRun, ARankWithOtherHyperparametersOfAGroup) {
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    InitializeOptions options{.world = world};
    options.param_groups = {{.lr = 0.01, .weight_decay = 0.1 * world->rank()}};
    options.group_of = [](const std::string&) { return 0; };
    EXPECT_THAT(
        error_of([&] { initialize(std::make_shared<Net>(), config_with(json::object()), options); }),
        AllOf(StartsWith("rank 1 has another optimizer than rank 0: group 0:"), HasSubstr("weight_decay = 0.1")));
  });
}

}  // namespace
}  // namespace tessera::same_run_test

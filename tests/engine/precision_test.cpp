// Loss scaling, the dtypes in which gradients add up and travel, and the ways of averaging them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/base/error.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tessera/zero/sharded_model.h"
#include "tests/engine/toy_models.h"
#include "tests/support/built_places.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::precision_test {
namespace {

using nlohmann::json;
using test::kWidth;
using test::ToyInput;

json base_config(int stage) {
  return {{"train_micro_batch_size_per_gpu", 2},
          {"gradient_clipping", 0.0},
          {"zero_optimization", {{"stage", stage}}},
          {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.02}, {"eps", 1e-2}}}}}};
}

config::DsConfig parse(const json& value, int ranks) {
  return config::parse_ds_config(value, "the test", {.data_parallel_size = ranks});
}

// Gradient of each weight: the input's. 2^-14 keeps every scaled gradient of these tests within fp16. The loss is in
// fp32, as a loss should be: the scale itself, its gradient, does not fit fp16.
class Slope : public torch::nn::Module {
 public:
  Slope() { weight = register_parameter("weight", at::ones({kWidth})); }
  at::Tensor forward(double slope) { return (weight.to(at::kFloat) * slope).sum(); }
  at::Tensor weight;
};

// The sequences were made by DeepSpeed 0.19.8's own DynamicLossScaler from the same overflows.
TEST(LossScaling, FollowsDeepSpeedFor200Steps) {
  std::ifstream file(test::source_folder() + "/tests/engine/data/loss_scales.json");
  const json sequences = json::parse(file);
  ASSERT_EQ(sequences.size(), 4);
  for (const json& sequence : sequences) {
    test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
      for (const int stage : {0, 3}) {
        json config = base_config(stage);
        config["fp16"] = sequence["fp16"];
        config["scheduler"] = {{"type", "linear"}, {"params", {{"num_training_steps", 200}}}};
        const auto engine = initialize(std::make_shared<Slope>(), parse(config, 2), {.world = world});
        const std::string overflow = sequence["overflow"];
        int taken = 0;
        for (size_t step = 0; step < overflow.size(); ++step) {
          const bool inject = overflow[step] == '1' && world->rank() == 1;  // on one rank only: all must skip
          engine->backward(engine->forward(inject ? INFINITY : 0x1p-14));
          engine->step();
          taken += overflow[step] == '0';
          ASSERT_EQ(engine->loss_scale(), sequence["scale_after"][step].get<double>())
              << sequence["name"] << ", stage " << stage << ", step " << step;
          ASSERT_EQ(engine->was_step_applied(), overflow[step] == '0');
          // The schedule does not advance with a step that was skipped.
          ASSERT_NEAR(engine->lr(), 0.02 * (200 - taken) / 200, 1e-12);
        }
        EXPECT_EQ(engine->skipped_steps(), 200 - taken);
      }
    });
  }
}

TEST(LossScaling, DividesTheGradientsAgain) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    json config = base_config(2);
    config["fp16"] = {{"enabled", true}, {"loss_scale", 1024}};
    const auto engine = initialize(std::make_shared<Slope>(), parse(config, 2), {.world = world});
    engine->backward(engine->forward(0.25));
    engine->step();
    EXPECT_NEAR(engine->get_global_grad_norm(), 0.25 * std::sqrt(kWidth), 1e-6);
    EXPECT_EQ(engine->loss_scale(), 1024);
  });
}

TEST(LossScaling, GivesUpAtTheMinimumAndNamesTheParameters) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    json config = base_config(3);
    config["fp16"] = {{"enabled", true}, {"initial_scale_power", 1}, {"hysteresis", 1}, {"min_loss_scale", 1}};
    const auto engine = initialize(std::make_shared<test::ThreeBlocks>(), parse(config, 2), {.world = world});
    const auto step = [&] {
      // Only the last block's bias has a gradient of its own that is not finite: the others' are NaN through it.
      ToyInput input{.x = at::full({2, kWidth}, INFINITY, at::kHalf)};
      engine->backward(engine->call([](test::ThreeBlocks& m, const ToyInput& in) { return m.loss(in); }, input));
      engine->step();
    };
    step();
    EXPECT_EQ(engine->loss_scale(), 1);
    try {
      step();
      FAIL() << "went on";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("loss scale at its minimum, 1"));
      EXPECT_THAT(error.what(), testing::HasSubstr("block0.weight"));
    }
  });
}

// Ways of averaging --------------------------------------------------------------------------------------------------

struct Outcome {
  at::Tensor weight;
  double grad_norm = 0;
};

Outcome train(const json& config, const std::shared_ptr<comm::Group>& world) {
  const auto model = std::make_shared<test::ThreeBlocks>();
  const auto engine = initialize(model, parse(config, world->size()), {.world = world});
  Outcome outcome;
  for (int step = 0; step < 6; ++step) {
    at::Tensor x = at::cos(at::arange(2 * kWidth, at::kFloat) * 0.3 + (step * 7.0 + world->rank() * 1.3));
    ToyInput input{.x = x.view({2, kWidth}).to(model->blocks[0]->weight.scalar_type())};
    engine->backward(engine->call([](test::ThreeBlocks& m, const ToyInput& in) { return m.loss(in); }, input));
    engine->step();
    if (step == 0) outcome.grad_norm = engine->get_global_grad_norm();
  }
  const Gathered whole(*engine);
  outcome.weight = model->blocks[1]->weight.detach().clone();
  return outcome;
}

// With two ranks every division is by a power of two, so that even these give the same bits in fp32.
TEST(Averaging, HasTheSameBitsInEveryWay) {
  const std::vector<std::pair<const char*, json>> ways = {
      {"reduce_scatter off", {{"zero_optimization", {{"reduce_scatter", false}}}}},
      {"overlap_comm off", {{"zero_optimization", {{"overlap_comm", false}}}}},
      {"small buckets", {{"zero_optimization", {{"reduce_bucket_size", 100}}}}},
      {"buckets of one", {{"zero_optimization", {{"reduce_bucket_size", 1}, {"overlap_comm", false}}}}},
      {"prescale", {{"prescale_gradients", true}}},
      {"predivide", {{"gradient_predivide_factor", 2.0}}}};
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      {
        json config = base_config(stage);
        config["gradient_accumulation_steps"] = 1 + stage % 2;
        const Outcome usual = train(config, world);
        for (const auto& [name, change] : ways) {
          json changed = config;
          changed.merge_patch(change);
          const Outcome outcome = train(changed, world);
          EXPECT_TRUE(at::equal(outcome.weight, usual.weight)) << name << ", stage " << stage;
          EXPECT_EQ(outcome.grad_norm, usual.grad_norm) << name << ", stage " << stage;
        }
      }
    }
  });
}

TEST(Averaging, OfThreeRanksIsTheSameUpToRounding) {
  test::spawn_ranks(3, [](const std::shared_ptr<comm::Group>& world) {
    const Outcome usual = train(base_config(2), world);
    for (const json& change : {json{{"prescale_gradients", true}}, json{{"gradient_predivide_factor", 1.7}}}) {
      json changed = base_config(2);
      changed.merge_patch(change);
      EXPECT_TRUE(at::allclose(train(changed, world).weight, usual.weight, 1e-5, 1e-6)) << change;
    }
  });
}

TEST(Averaging, SumsWhereToldTo) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      json config = base_config(stage);
      const double mean = train(config, world).grad_norm;
      config["gradient_allreduce_op"] = "sum";
      EXPECT_EQ(train(config, world).grad_norm, 2 * mean);
    }
  });
}

// Gradients in bf16 have 8 bits; added up over 64 micro batches in bf16 the small ones vanish (1 + 2^-8 is 1), in fp32
// they do not. One rank, the slope of micro batch 0 is 1 and of the others 2^-8.
TEST(GradientDtype, KeepsInFp32WhatBf16Loses) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const bool fp32 : {false, true}) {
      json config = base_config(stage);
      config["bf16"] = {{"enabled", true}};
      config["gradient_accumulation_steps"] = 64;
      config["communication_data_type"] = "fp32";
      if (fp32) config["data_types"] = {{"grad_accum_dtype", "fp32"}};
      const auto engine = initialize(std::make_shared<Slope>(), parse(config, 1), {.world = comm::Group::alone()});
      for (int micro = 0; micro < 64; ++micro) {
        engine->backward(engine->forward(micro == 0 ? 64 : 0.25));  // divided by 64: 1 and 2^-8
        engine->step();
      }
      const double each = engine->get_global_grad_norm() / std::sqrt(kWidth);
      EXPECT_NEAR(each, fp32 ? 1 + 63 * 0x1p-8 : 1, 1e-6) << "stage " << stage;
    }
  }
}

// 1 on rank 0 and 2^-9 on rank 1: the mean, (1 + 2^-9) / 2, fits fp32 and not bf16, where it becomes 1 / 2.
TEST(GradientDtype, TravelsInTheOneThatIsAskedFor) {
  test::spawn_ranks(2, [](const std::shared_ptr<comm::Group>& world) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const bool fp32 : {false, true}) {
        json config = base_config(stage);
        config["bf16"] = {{"enabled", true}};
        config["data_types"] = {{"grad_accum_dtype", "fp32"}};
        if (fp32) config["communication_data_type"] = "fp32";
        const auto engine = initialize(std::make_shared<Slope>(), parse(config, 2), {.world = world});
        engine->backward(engine->forward(world->rank() == 0 ? 1 : 0x1p-9));
        engine->step();
        const double each = engine->get_global_grad_norm() / std::sqrt(kWidth);
        EXPECT_NEAR(each, fp32 ? 0.5 + 0x1p-10 : 0.5, 1e-6) << "stage " << stage;
      }
    }
  });
}

// Bytes a parameter, all in bf16: weight 2, gradient 2, two moments 2 each.
TEST(StateDtype, In16BitsTakesTheBytesOf16Bits) {
  json config = base_config(0);
  config["bf16"] = {{"enabled", true}, {"bf16_master_weights_and_grads", true}, {"bf16_optimizer_states", true}};
  const auto engine = initialize(std::make_shared<Slope>(), parse(config, 1), {.world = comm::Group::alone()});
  const int64_t padded = engine->sharded_model().units().front()->layout().numel();
  EXPECT_EQ(engine->model_state_bytes(), padded * (2 + 2 + 2 + 2));
}

// A gradient that is not finite: skipped in bf16 too, unless bf16.check_grad_overflow is off.
TEST(StepsThatAreNotFinite, AreSkippedUnlessToldOtherwise) {
  for (const bool check : {true, false}) {
    json config = base_config(1);
    config["bf16"] = {{"enabled", true}, {"check_grad_overflow", check}};
    const auto model = std::make_shared<Slope>();
    const auto engine = initialize(model, parse(config, 1), {.world = comm::Group::alone()});
    engine->backward(engine->forward(NAN));
    engine->step();
    EXPECT_EQ(engine->was_step_applied(), !check);
    EXPECT_EQ(at::isfinite(model->weight).all().item<bool>(), check);
  }
}

TEST(Autocast, MultipliesMatricesInItsDtypeAndKeepsTheParameters) {
  json config = base_config(3);
  config["torch_autocast"] = {{"enabled", true}, {"dtype", "bfloat16"}};
  const auto model = std::make_shared<test::Block>(1);
  const auto engine = initialize(model, parse(config, 1), {.world = comm::Group::alone()});
  const at::Tensor x = at::ones({2, kWidth});
  const at::Tensor product = engine->call(
      [](test::Block& block, const at::Tensor& in) {
        EXPECT_EQ(block.weight.scalar_type(), at::kFloat);
        return at::matmul(in, block.weight);
      },
      x);
  EXPECT_EQ(product.scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::matmul(x, at::ones({kWidth, 1})).scalar_type(), at::kFloat);  // off again outside
}

// Parameters and autocast in bf16: what autocast keeps in fp32, such as a loss, is in fp32.
TEST(Autocast, GoesWithParametersOfItsDtype) {
  for (const bool on : {false, true}) {
    json config = base_config(3);
    config["bf16"] = {{"enabled", true}};
    config["torch_autocast"] = {{"enabled", on}, {"dtype", "bfloat16"}};
    const auto engine = initialize(std::make_shared<test::Block>(1), parse(config, 1), {.world = comm::Group::alone()});
    const at::Tensor x = at::ones({2, kWidth}, at::kBFloat16);
    const at::Tensor loss = engine->call(
        [](test::Block& block, const at::Tensor& in) {
          EXPECT_EQ(block.weight.scalar_type(), at::kBFloat16);
          const at::Tensor product = at::matmul(in, block.weight);
          EXPECT_EQ(product.scalar_type(), at::kBFloat16);
          return at::mse_loss(product, at::zeros_like(product));
        },
        x);
    EXPECT_EQ(loss.scalar_type(), on ? at::kFloat : at::kBFloat16);
  }
}

TEST(AutoCast, OfFp16CastsWhatForwardIsGiven) {
  json config = base_config(1);
  config["fp16"] = {{"enabled", true}, {"auto_cast", true}};
  const auto engine = initialize(std::make_shared<test::Block>(1), parse(config, 1), {.world = comm::Group::alone()});
  EXPECT_EQ(engine->forward(at::ones({2, kWidth})).scalar_type(), at::kHalf);
}

}  // namespace
}  // namespace tessera::precision_test

// The combinations on which sharded training breaks elsewhere, at every stage, with and without accumulation: each
// equal to one process that trains the same model on the same global batch with plain autograd and AdamW's formula.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "tessera/base/error.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/engine.h"
#include "tessera/zero/state_update.h"
#include "tests/engine/toy_models.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::combinations_test {
namespace {

using test::outcomes_of_ranks;
using test::spawn_ranks;
using test::ToyInput;
using test::ToyModel;
using testing::HasSubstr;

constexpr int kSteps = 4;
constexpr double kLr = 0.02;
constexpr double kDecay = 0.1;
constexpr double kEps = 1e-2;  // large, so that a gradient near 0 does not make the comparison ill-conditioned

using Weights = std::map<std::string, at::Tensor>;
using MakeModel = std::function<std::shared_ptr<ToyModel>()>;

// At stage 3: only what is in use is whole; as little more as a block; all that was used is kept.
const nlohmann::json kOnlyInUse = {{"stage3_max_live_parameters", 0}};
const nlohmann::json kOneMore = {{"stage3_max_live_parameters", 500}, {"stage3_param_persistence_threshold", 0}};
const nlohmann::json kAllUsed = nlohmann::json::object();

struct EngineRun {
  int stage = 0;
  int accumulation = 1;
  bool bf16 = false;
  bool extra_forwards = false;  // an evaluation and a forward without backward between the steps
  nlohmann::json gathering = kOnlyInUse;
};

config::DsConfig toy_config(const EngineRun& run, int world_size) {
  nlohmann::json json = {
      {"train_micro_batch_size_per_gpu", 2},
      {"gradient_accumulation_steps", run.accumulation},
      {"gradient_clipping", 0.0},
      {"bf16", {{"enabled", run.bf16}}},
      {"zero_optimization", run.gathering},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", kLr}, {"eps", kEps}, {"weight_decay", kDecay}}}}}};
  json["zero_optimization"]["stage"] = run.stage;
  return config::parse_ds_config(json, "the test", {.data_parallel_size = world_size});
}

// The micro batch of one rank; the flag differs between ranks, or between steps, as the scenario wants.
ToyInput toy_input(int step, int micro, int rank, bool flag) {
  const at::Tensor x =
      at::cos(at::arange(2 * test::kWidth, at::kFloat) * 0.3 + (step * 7.0 + micro * 3.0 + rank * 1.3));
  return {.x = x.view({2, test::kWidth}), .flag = flag};
}

using Flag = std::function<bool(int step, int rank)>;

Weights weights_of(const ToyModel& model) {
  Weights weights;
  for (const auto& item : model.named_parameters()) weights[item.key()] = item.value().detach().clone().to(at::kFloat);
  return weights;
}

// torch.optim.AdamW with grad None skipped, written out.
Weights train_plainly(const MakeModel& make, int accumulation, int world_size, const Flag& flag) {
  const auto model = make();
  model->checkpoints = false;
  std::map<const at::TensorImpl*, std::pair<at::Tensor, at::Tensor>> moments;
  std::map<const at::TensorImpl*, int> steps;
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < accumulation; ++micro) {
      for (int rank = 0; rank < world_size; ++rank) {
        (model->loss(toy_input(step, micro, rank, flag(step, rank))) / (world_size * accumulation)).backward();
      }
    }
    const at::NoGradGuard no_grad;
    std::set<const at::TensorImpl*> done;
    for (auto& item : model->named_parameters()) {
      at::Tensor& weight = item.value();
      const at::TensorImpl* const key = weight.unsafeGetTensorImpl();
      if (!weight.grad().defined() || !done.insert(key).second) continue;
      auto [entry, is_new] = moments.try_emplace(key, at::zeros_like(weight), at::zeros_like(weight));
      auto& [m, v] = entry->second;
      const at::Tensor g = weight.grad();
      const int t = ++steps[key];
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      weight.mul_(1 - kLr * kDecay);
      weight.sub_(kLr * (m / (1 - std::pow(0.9, t))) / ((v / (1 - std::pow(0.999, t))).sqrt() + kEps));
      weight.mutable_grad() = at::Tensor();
    }
  }
  return weights_of(*model);
}

Weights train_with_engine(const MakeModel& make, const EngineRun& run, std::shared_ptr<comm::Group> world,
                          const Flag& flag) {
  const auto model = make();
  const int rank = world->rank();
  const auto engine = initialize(model, toy_config(run, world->size()), {.world = world});
  const auto loss_of = [&](const ToyInput& input) {
    return engine->call([](ToyModel& m, const ToyInput& in) { return m.loss(in); }, input);
  };
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < run.accumulation; ++micro) {
      ToyInput input = toy_input(step, micro, rank, flag(step, rank));
      if (run.bf16) input.x = input.x.to(at::kBFloat16);
      if (run.extra_forwards) {
        const at::Tensor dropped = loss_of(input);
        const at::NoGradGuard no_grad;
        engine->eval();
        EXPECT_TRUE(std::isfinite(loss_of(input).item<float>()));
        engine->train();
      }
      engine->backward(loss_of(input));
      engine->step();
    }
  }
  EXPECT_EQ(engine->global_steps(), kSteps);
  for (const auto& unit : engine->sharded_model().units()) {
    EXPECT_EQ(unit->state(), run.stage == 3 ? zero::UnitState::kSharded : zero::UnitState::kGathered) << unit->name();
  }
  const Gathered whole(*engine);
  return weights_of(*model);
}

void expect_close(const Weights& got, const Weights& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    EXPECT_TRUE(at::allclose(got.at(name), tensor, /*rtol=*/1e-5, /*atol=*/1e-6))
        << what << ", " << name << " differs by up to " << (got.at(name) - tensor).abs().max().item<float>();
  }
}

void expect_same_bits(const Weights& got, const Weights& want, const std::string& what) {
  for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(got.at(name), tensor)) << what << ", " << name;
}

struct Scenario {
  const char* name;
  MakeModel make;
  Flag flag;
  bool extra_forwards = false;
};

template <class Model>
MakeModel makes() {
  return [] { return std::make_shared<Model>(); };
}

bool never(int, int) { return false; }
bool on_odd_steps(int step, int) { return step % 2 == 1; }
bool on_rank_one(int, int rank) { return rank == 1; }
bool on_rank_one_at_odd_steps(int step, int rank) { return step % 2 == 1 && rank == 1; }

class Combination : public testing::TestWithParam<Scenario> {};

TEST_P(Combination, EqualsOneProcessWithoutShardingAtEveryStage) {
  const Scenario& scenario = GetParam();
  for (const int world_size : {1, 2, 3}) {
    spawn_ranks(world_size, [&](std::shared_ptr<comm::Group> world) {
      for (const int accumulation : {1, 3}) {
        const Weights want = train_plainly(scenario.make, accumulation, world->size(), scenario.flag);
        std::map<int, Weights> got;
        for (const int stage : {0, 1, 2, 3}) {
          const std::string what = "stage " + std::to_string(stage) + ", accumulation " + std::to_string(accumulation);
          got[stage] = train_with_engine(
              scenario.make, {.stage = stage, .accumulation = accumulation, .extra_forwards = scenario.extra_forwards},
              world, scenario.flag);
          expect_close(got[stage], want, what);
        }
        expect_same_bits(got[1], got[0], "stages 0 and 1");
        expect_same_bits(got[3], got[2], "stages 2 and 3");
        for (const nlohmann::json& gathering : {kOneMore, kAllUsed}) {
          const EngineRun run{.stage = 3,
                              .accumulation = accumulation,
                              .extra_forwards = scenario.extra_forwards,
                              .gathering = gathering};
          expect_same_bits(train_with_engine(scenario.make, run, world, scenario.flag), got[3], gathering.dump());
        }
        if (accumulation == 1) expect_same_bits(got[2], got[0], "stages 0 and 2");
      }
    });
  }
}

TEST_P(Combination, HasTheSameBitsAtEveryStageInBf16) {
  const Scenario& scenario = GetParam();
  spawn_ranks(2, [&](std::shared_ptr<comm::Group> world) {
    const auto train = [&](int stage) {
      return train_with_engine(scenario.make, {.stage = stage, .bf16 = true}, world, scenario.flag);
    };
    const Weights want = train(0);
    for (const int stage : {1, 2, 3}) expect_same_bits(train(stage), want, "stage " + std::to_string(stage));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Toys, Combination,
    testing::Values(
        Scenario{"Plain", makes<test::ThreeBlocks>(), never},
        Scenario{"ABlockUsedThreeTimes", makes<test::BlockUsedTwice>(), never},
        Scenario{"TiedWeights", makes<test::TiedWeights>(), never},
        Scenario{"FrozenParameters", makes<test::Frozen>(), never},
        Scenario{"AParameterThatOneRankDoesNotUse", makes<test::ParameterThatOneRankDoesNotUse>(), on_rank_one},
        Scenario{"AParameterUsedNowAndThen", makes<test::ParameterThatOneRankDoesNotUse>(), on_rank_one_at_odd_steps},
        Scenario{"UnitsInAnotherOrderAtTheNextStep", makes<test::OtherOrder>(), on_odd_steps},
        Scenario{"SeveralOutputs", makes<test::SeveralOutputs>(), never},
        Scenario{"NoUnits", makes<test::NoUnits>(), never},
        Scenario{"EvaluationAndAForwardWithoutBackwardBetweenSteps", makes<test::BlockUsedTwice>(), never, true}),
    [](const auto& scenario) { return scenario.param.name; });

// DeepSpeed's zero_optimization.ignore_unused_parameters, which its stages 1 and 2 know.
TEST(UnusedParameters, AreAnErrorAtStages1And2WhereTheConfigurationSaysSo) {
  spawn_ranks(2, [](std::shared_ptr<comm::Group> world) {
    const MakeModel make = makes<test::ParameterThatOneRankDoesNotUse>();
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool ignored : {true, false}) {
        const EngineRun run{.stage = stage, .accumulation = 2, .gathering = {{"ignore_unused_parameters", ignored}}};
        std::string refusal;
        try {
          train_with_engine(make, run, world, on_rank_one);
        } catch (const zero::UnusedParameters& error) {
          refusal = error.what();
        }
        if (ignored || stage == 0 || stage == 3) {
          EXPECT_EQ(refusal, "") << "stage " << stage;
        } else {
          EXPECT_THAT(refusal, HasSubstr("'never'"));
          EXPECT_THAT(refusal, HasSubstr("'first.extra' (on 1 of 2 ranks)"));
          EXPECT_THAT(refusal, HasSubstr("set ignore_unused_parameters to true"));
        }
      }
    }
  });
}

// Activation checkpoints
// ------------------------------------------------------------------------------------------------------

struct CheckpointScenario {
  const char* name;
  MakeModel plain;
  MakeModel checkpointed;
  Flag flag = never;
  bool extra_forwards = false;
};

template <class Model>
CheckpointScenario with_and_without(const char* name, Flag flag = never, bool extra_forwards = false) {
  return {name, makes<Model>(), makes<test::Checkpointed<Model>>(), flag, extra_forwards};
}

class CheckpointCombination : public testing::TestWithParam<CheckpointScenario> {};

// The plain models are those that equal one process without sharding, above. Same bits, so the reduction of no unit
// began before its gradient was whole; and at stage 3 nothing may be left gathered.
TEST_P(CheckpointCombination, HasTheBitsOfTheModelWithoutCheckpointsAtEveryStage) {
  const CheckpointScenario& scenario = GetParam();
  for (const int world_size : {1, 2, 3}) {
    spawn_ranks(world_size, [&](std::shared_ptr<comm::Group> world) {
      for (const bool bf16 : {false, true}) {
        for (const int accumulation : bf16 ? std::vector{3} : std::vector{1, 3}) {
          for (const int stage : {0, 1, 2, 3}) {
            const auto train = [&](const MakeModel& make, const nlohmann::json& gathering) {
              at::manual_seed(11 + world->rank());
              return train_with_engine(make,
                                       {.stage = stage,
                                        .accumulation = accumulation,
                                        .bf16 = bf16,
                                        .extra_forwards = scenario.extra_forwards,
                                        .gathering = gathering},
                                       world, scenario.flag);
            };
            const Weights want = train(scenario.plain, kOnlyInUse);
            for (const nlohmann::json& gathering : {kOnlyInUse, kAllUsed}) {
              if (stage < 3 && gathering != kAllUsed) continue;
              expect_same_bits(train(scenario.checkpointed, gathering), want,
                               fmt::format("stage {}, accumulation {}, bf16 {}", stage, accumulation, bf16));
            }
          }
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Toys, CheckpointCombination,
    testing::Values(
        with_and_without<test::ThreeBlocks>("Plain"),
        with_and_without<test::BlockUsedTwice>("ABlockInTwoCheckpointsAndOutside"),
        with_and_without<test::TiedWeights>("TiedWeights"), with_and_without<test::Frozen>("FrozenParameters"),
        with_and_without<test::ParameterThatOneRankDoesNotUse>("AParameterUsedNowAndThen", on_rank_one_at_odd_steps),
        with_and_without<test::OtherOrder>("UnitsInAnotherOrderAtTheNextStep", on_odd_steps),
        with_and_without<test::SeveralOutputs>("SeveralOutputs"),
        with_and_without<test::PartsOfSeveralUnits>("PartsOfSeveralUnitsWithDropout"),
        with_and_without<test::NoUnits>("NoUnits"),
        with_and_without<test::BlockUsedTwice>("EvaluationAndAForwardWithoutBackwardBetweenSteps", never, true)),
    [](const auto& scenario) { return scenario.param.name; });

// Against plain autograd in one process, so that the test above does not compare one mistake with itself.
TEST(CheckpointedModel, EqualsOneProcessWithoutShardingAtEveryStage) {
  const MakeModel make = makes<test::Checkpointed<test::BlockUsedTwice>>();
  spawn_ranks(2, [&](std::shared_ptr<comm::Group> world) {
    const Weights want = train_plainly(make, 3, world->size(), never);
    for (const int stage : {0, 1, 2, 3}) {
      expect_close(train_with_engine(make, {.stage = stage, .accumulation = 3}, world, never), want,
                   "stage " + std::to_string(stage));
    }
  });
}

TEST(CheckpointedModel, KeepsItsInputsAsTheConfigurationSays) {
  const auto train = [](const nlohmann::json& block) {
    nlohmann::json json = {{"train_batch_size", 2}, {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", kLr}}}}}};
    if (!block.empty()) json["activation_checkpointing"] = block;
    const auto model = std::make_shared<test::Checkpointed<test::ThreeBlocks>>();
    const auto engine = initialize(model, config::parse_ds_config(json, "the test", {}));
    for (int step = 0; step < 3; ++step) {
      engine->backward(
          engine->call([](ToyModel& m, const ToyInput& in) { return m.loss(in); }, toy_input(step, 0, 0, false)));
      engine->step();
    }
    return weights_of(*model);
  };
  const nlohmann::json contiguous = {
      {"partition_activations", true}, {"contiguous_memory_optimization", true}, {"number_checkpoints", 3}};
  const Weights want = train({});
  expect_same_bits(train(contiguous), want, "contiguous");
  expect_same_bits(train({{"cpu_checkpointing", true}, {"profile", true}}), want, "on the host");
  nlohmann::json too_few = contiguous;
  too_few["number_checkpoints"] = 2;
  EXPECT_THROW(train(too_few), Error);
}

TEST(Divergence, ARankThatRunsOtherUnitsGetsAnErrorThatNamesBoth) {
  const auto outcomes =
      outcomes_of_ranks(2,
                        [](std::shared_ptr<comm::Group> world) {
                          train_with_engine(makes<test::OtherOrder>(), {.stage = 3}, world, on_rank_one);
                        },
                        {.timeout = std::chrono::seconds(3)});
  const std::string both = outcomes[0].output + outcomes[1].output;
  EXPECT_NE(outcomes[0].exit_code, 0);
  EXPECT_NE(outcomes[1].exit_code, 0);
  EXPECT_THAT(both, HasSubstr("all-gather of 'block0'"));
  EXPECT_THAT(both, HasSubstr("all-gather of 'block1'"));
  EXPECT_THAT(both, HasSubstr("rank 1"));
}

TEST(Engine, TrainsARootThatAnnouncesItself) {
  std::vector<Weights> results;
  for (const int stage : {0, 3}) {
    const auto model = std::make_shared<test::RootIsAUnit>();
    const auto engine = initialize(model, toy_config({.stage = stage}, 1));
    engine->backward(engine->forward(toy_input(0, 0, 0, false).x));
    engine->step();
    const Gathered whole(*engine);
    results.push_back({{"weight", model->weight.detach().clone()}, {"bias", model->block->bias.detach().clone()}});
    EXPECT_FALSE(at::equal(results.back().at("bias"), test::Block::values({test::kWidth}, 4)));
  }
  expect_same_bits(results[1], results[0], "stage 3");
}

// Each of them reduces, as accumulation is 1.
TEST(Engine, AddsUpTheBackwardsBeforeOneStep) {
  const Weights want = train_plainly(makes<test::ThreeBlocks>(), /*accumulation=*/2, /*world_size=*/2, never);
  spawn_ranks(2, [&](std::shared_ptr<comm::Group> world) {
    for (const int stage : {0, 1, 2, 3}) {
      const auto model = std::make_shared<test::ThreeBlocks>();
      const auto engine = initialize(model, toy_config({.stage = stage}, 2), {.world = world});
      for (int step = 0; step < kSteps; ++step) {
        for (int micro = 0; micro < 2; ++micro) {
          const ToyInput input = toy_input(step, micro, world->rank(), false);
          engine->backward(engine->call([](ToyModel& m, const ToyInput& in) { return m.loss(in); }, input) / 2);
        }
        engine->step();
      }
      const Gathered whole(*engine);
      expect_close(weights_of(*model), want, fmt::format("stage {}", stage));
    }
  });
}

TEST(Engine, RefusesAStepWithoutBackward) {
  const auto engine = initialize(std::make_shared<test::ThreeBlocks>(), toy_config({}, 1));
  EXPECT_THROW(engine->step(), Error);
}

TEST(Engine, SkipsAStepWhoseGradientIsNotFinite) {
  for (const int stage : {0, 3}) {
    const auto model = std::make_shared<test::ThreeBlocks>();
    const auto engine = initialize(model, toy_config({.stage = stage}, 1));
    const Weights before = [&] {
      const Gathered whole(*engine);
      return weights_of(*model);
    }();
    const ToyInput input = toy_input(0, 0, 0, false);
    const at::Tensor loss = engine->call([](ToyModel& m, const ToyInput& in) { return m.loss(in); }, input);
    engine->backward(loss * std::numeric_limits<float>::infinity());
    engine->step();
    EXPECT_FALSE(engine->was_step_applied());
    EXPECT_EQ(engine->skipped_steps(), 1);
    const Gathered whole(*engine);
    expect_same_bits(weights_of(*model), before, "weights");
  }
}

// Document 003's formulas: mixed precision, N ranks, 4 + 12/N, 2 + 14/N, 16/N bytes a parameter; padding is at most
// kAlignNumel * N elements a unit and kAlignNumel a parameter.
TEST(Engine, KeepsTheBytesOfTheZeroPapersFormulas) {
  for (const int world_size : {1, 2, 4}) {
    spawn_ranks(world_size, [](std::shared_ptr<comm::Group> world) {
      const double n = world->size();
      const double expected[] = {16, 4 + 12 / n, 2 + 14 / n, 16 / n};
      for (const int stage : {0, 1, 2, 3}) {
        const auto engine = initialize(std::make_shared<test::ThreeBlocks>(),
                                       toy_config({.stage = stage, .bf16 = true}, world->size()), {.world = world});
        int64_t padded = 0;
        for (const auto& unit : engine->sharded_model().units()) padded += unit->layout().numel();
        const int64_t params = 3 * (test::kWidth * test::kWidth + test::kWidth);
        EXPECT_EQ(engine->sharded_model().param_count(), params);
        EXPECT_LE(padded, params + 3 * (2 * layout::kAlignNumel + layout::kAlignNumel * world->size()));
        EXPECT_EQ(static_cast<double>(engine->model_state_bytes()), expected[stage] * static_cast<double>(padded));
      }
    });
  }
}

}  // namespace
}  // namespace tessera::combinations_test

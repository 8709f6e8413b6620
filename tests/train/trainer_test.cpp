// The trainer with data and a model of one's own.
#include "tessera/train/trainer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/retention.h"
#include "tessera/config/ds_config.h"
#include "tessera/storage/folder_lock.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temporary_folder.h"

namespace tessera::train::trainer_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int64_t kSamples = 24, kFeatures = 3;

// y = x w, from which noise-free least squares can recover w.
struct Line : torch::nn::Module {
  Line() { weight = register_parameter("weight", at::zeros({kFeatures, 1})); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return (at::matmul(x, weight) - y).square().sum(); }
  at::Tensor weight;
};

struct Rows {
  at::Tensor x, y;
};

// Sample i is a row of numbers that depend on i alone; held-out samples are others.
Rows rows_of(std::span<const size_t> samples, double shift) {
  std::vector<at::Tensor> x;
  for (const size_t i : samples)
    x.push_back(at::sin(at::arange(kFeatures, at::kFloat) * (static_cast<double>(i) + shift)));
  const at::Tensor stacked = at::stack(x);
  return {stacked, stacked.sum(1, /*keepdim=*/true)};
}

data::Samples<Rows> samples(size_t size, double shift) {
  return {.size = size, .collate = [shift](std::span<const size_t> rows, int64_t) { return rows_of(rows, shift); }};
}

config::DsConfig config_of(int stage, int64_t ranks) {
  return config::parse_ds_config(
      json{{"train_batch_size", 8},
           {"zero_optimization", {{"stage", stage}}},
           {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.05}, {"weight_decay", 0}}}}}},
      "the test", {.data_parallel_size = ranks});
}

struct Trained {
  TrainerReport report;
  std::vector<json> rows;  // of metrics.jsonl; rank 0's

  std::vector<double> losses(const char* key) const {
    std::vector<double> values;
    for (const json& row : rows) {
      if (row.contains(key)) values.push_back(row[key]);
    }
    return values;
  }
};

// `broken(n)`: whether the n-th step, from 1, has a loss that is not a number.
using Broken = std::function<bool(int64_t)>;

Trained run(const std::shared_ptr<comm::Mesh>& mesh, int stage, TrainerOptions options, const Broken& broken = {}) {
  const auto engine = initialize(std::make_shared<Line>(), config_of(stage, mesh->shape().replicas()), {.mesh = mesh});
  BatchTask<Rows> task({.train = samples(kSamples, 1),
                        .loss = [&](const Rows& batch) -> BatchLoss {
                          const bool breaks =
                              broken && engine->module().is_training() && broken(engine->global_steps() + 1);
                          const at::Tensor sum = engine->forward(batch.x, batch.y);
                          return {.sum = breaks ? sum * std::nan("") : sum, .targets = batch.x.size(0)};
                        },
                        .eval = samples(10, 0.5)},
                       loader_options(*engine));
  const auto output = options.output;
  Trained result{.report = Trainer(*engine, task, std::move(options)).run()};
  std::ifstream file(output / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) result.rows.push_back(json::parse(line));
  return result;
}

Trained run(const std::shared_ptr<comm::Group>& world, int stage, TrainerOptions options, const Broken& broken = {}) {
  return run(comm::Mesh::data_parallel(world), stage, std::move(options), broken);
}

Trained run_alone(int stage, TrainerOptions options) { return run(comm::Group::alone(), stage, std::move(options)); }

TEST(Trainer, LearnsALineFromSamplesOfOnesOwn) {
  const test::TemporaryFolder folder;
  const Trained done = run_alone(0, {.output = folder.path() / "out", .max_steps = 200, .eval_at_start = true});
  EXPECT_EQ(done.report.steps, 200);
  EXPECT_EQ(done.report.trained, 200);
  EXPECT_EQ(done.losses("loss").size(), 200u);
  ASSERT_TRUE(done.report.first && done.report.last);
  EXPECT_EQ(done.report.first->step, 0);
  EXPECT_EQ(done.report.last->step, 200);
  EXPECT_LT(done.report.last->loss, 1e-3 * done.report.first->loss);  // the line is exact, so the loss goes to 0
}

// The loss is the mean over samples: the first step's is that of the plain formula at weight 0, y squared.
TEST(Trainer, ALossIsTheMeanOverTheTargetsOfTheGlobalBatch) {
  const test::TemporaryFolder folder;
  const Trained done = run_alone(0, {.output = folder.path() / "out", .max_steps = 1, .eval_at_start = true});
  std::vector<size_t> held_out(10);
  for (size_t i = 0; i < held_out.size(); ++i) held_out[i] = i;
  EXPECT_NEAR(done.report.first->loss, rows_of(held_out, 0.5).y.square().mean().item<double>(), 1e-6);
}

// Ranks that differ in a model axis alone see the same batches, and a loss counts once.
TEST(Trainer, AMeshSplitsDataOverItsDataAxesAlone) {
  const test::TemporaryFolder folder;
  const Trained alone = run_alone(0, {.output = folder.path() / "one", .max_steps = 5, .eval_steps = 2});
  test::spawn_ranks(4, [&](const std::shared_ptr<comm::Group>& world) {
    const auto mesh = std::make_shared<comm::Mesh>(world, layout::MeshShape({{layout::kShardAxis, 2}, {"toy", 2}}));
    const Trained four = run(mesh, 2, {.output = folder.path() / "four", .max_steps = 5, .eval_steps = 2});
    world->barrier("metrics");
    if (world->rank() != 0) return;
    EXPECT_THAT(four.losses("loss"), testing::Pointwise(testing::DoubleNear(1e-5), alone.losses("loss")));
    EXPECT_THAT(four.losses("eval_loss"), testing::Pointwise(testing::DoubleNear(1e-5), alone.losses("eval_loss")));
    EXPECT_EQ(four.losses("samples"), alone.losses("samples"));
  });
}

TEST(Trainer, ARunOnTwoRanksHasTheLossesOfOne) {
  const test::TemporaryFolder folder;
  const Trained alone = run_alone(0, {.output = folder.path() / "one", .max_steps = 9, .eval_steps = 3});
  for (const int stage : {0, 3}) {
    const auto output = folder.path() / ("two" + std::to_string(stage));
    test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
      const Trained two = run(world, stage, {.output = output, .max_steps = 9, .eval_steps = 3});
      world->barrier("metrics");
      if (world->rank() != 0) return;
      EXPECT_THAT(two.losses("loss"), testing::Pointwise(testing::DoubleNear(1e-5), alone.losses("loss")));
      EXPECT_THAT(two.losses("eval_loss"), testing::Pointwise(testing::DoubleNear(1e-5), alone.losses("eval_loss")));
      EXPECT_EQ(two.losses("eval_loss").size(), 3u);
    });
  }
}

TEST(Trainer, AResumedRunIsTheWholeOne) {
  const test::TemporaryFolder folder;
  const Trained whole = run_alone(1, {.output = folder.path() / "whole", .max_steps = 8});
  run_alone(1, {.output = folder.path() / "parts", .max_steps = 5});
  const Trained rest = run_alone(1, {.output = folder.path() / "parts", .max_steps = 8, .resume = "auto"});
  EXPECT_EQ(rest.report.trained, 3);
  EXPECT_EQ(rest.losses("loss"), whole.losses("loss"));

  const Trained again = run_alone(1, {.output = folder.path() / "parts", .max_steps = 8, .resume = "auto"});
  EXPECT_EQ(again.report.trained, 0);
  EXPECT_EQ(again.report.steps, 8);
  EXPECT_FALSE(again.report.last);  // nothing was evaluated either
}

TEST(Trainer, TheBestCheckpointStaysHoweverManyFollow) {
  const test::TemporaryFolder folder;
  const auto output = folder.path() / "out";
  // The rate is so high that the loss falls and then jumps about: the lowest is not the last.
  const Trained done = run_alone(0, {.output = output,
                                     .max_steps = 60,
                                     .eval_steps = 2,
                                     .save_steps = 2,
                                     .retention = {.keep_last = 1},
                                     .keep_best = true});
  double lowest = 1e300;
  int64_t at = 0;
  for (const json& row : done.rows) {
    if (row.contains("eval_loss") && row["eval_loss"] < lowest) {
      lowest = row["eval_loss"];
      at = row["step"];
    }
  }
  ASSERT_TRUE(done.report.best);
  EXPECT_EQ(done.report.best->step, at);
  EXPECT_EQ(done.report.best->value, lowest);
  EXPECT_EQ(done.report.best_checkpoint, output / "checkpoints" / ("global_step" + std::to_string(at)));
  const std::string tag = "global_step" + std::to_string(at);
  EXPECT_EQ(checkpoint::read_best(output / "checkpoints"), tag);
  EXPECT_TRUE(std::filesystem::exists(output / "checkpoints" / tag / "manifest.json"));
  EXPECT_LE(checkpoint::tags_of(output / "checkpoints").size(), 3u);  // the last, the best, and the best before it
  // The record goes on in a resumed run.
  const Trained rest =
      run_alone(0, {.output = output, .max_steps = 62, .eval_steps = 1, .keep_best = true, .resume = "auto"});
  EXPECT_LE(rest.report.best->value, lowest);
}

// How many held-out rows a task saw, and the metric that `value` makes of the step.
Trained run_measured(const std::shared_ptr<comm::Group>& world, TrainerOptions options,
                     const std::function<double(int64_t step)>& value) {
  const auto engine = initialize(std::make_shared<Line>(), config_of(3, world->size()), {.world = world});
  const auto loss_of = [&](const Rows& batch) -> BatchLoss {
    return {.sum = engine->forward(batch.x, batch.y), .targets = batch.x.size(0)};
  };
  BatchTask<Rows> task(
      {.train = samples(kSamples, 1),
       .loss = loss_of,
       .eval = samples(11, 0.5),
       .eval_loss =
           [&](const Rows& batch) {
             BatchLoss loss = loss_of(batch);
             loss.tallies = {static_cast<double>(batch.x.size(0)), batch.x.sum().item<double>()};
             return loss;
           },
       .metrics = {{.name = "rows", .value = [](const LossSum& seen) { return seen.tallies.at(0); }},
                   {.name = "value", .value = [&](const LossSum&) { return value(engine->global_steps()); }}}},
      loader_options(*engine));
  const auto output = options.output;
  Trained result{.report = Trainer(*engine, task, std::move(options)).run()};
  std::ifstream file(output / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) result.rows.push_back(json::parse(line));
  return result;
}

TEST(Trainer, TalliesAddUpOverRanksThatShareTheRowsUnequally) {
  const test::TemporaryFolder folder;
  for (const int ranks : {1, 2, 4}) {
    const auto output = folder.path() / std::to_string(ranks);
    test::spawn_ranks(ranks, [&](const std::shared_ptr<comm::Group>& world) {
      const Trained done = run_measured(world, {.output = output, .max_steps = 1}, [](int64_t) { return 0.0; });
      EXPECT_EQ(done.report.last->others.at(0), (std::pair<std::string, double>("rows", 11)));
      world->barrier("metrics");
      if (world->rank() == 0) {
        EXPECT_EQ(done.losses("eval_rows"), std::vector<double>{11});
      }
    });
  }
}

// Values 3, 5, 4, 5, 2, …: the best is that after step 2, and an equal one is not better.
double value_after(int64_t step) {
  return step == 2 || step == 4 ? 5 : step == 1 ? 3 : 5.0 - static_cast<double>(step);
}

TEST(Trainer, PatienceEndsARunAndGoesOnInAResumedOne) {
  const test::TemporaryFolder folder;
  const auto output = folder.path() / "out";
  TrainerOptions options{.output = output,
                         .max_steps = 20,
                         .eval_steps = 1,
                         .save_steps = 5,
                         .retention = {.keep_last = 1},
                         .best_by = "eval_value",
                         .keep_best = true,
                         .patience = 3};
  const Trained whole = run_measured(comm::Group::alone(), options, value_after);
  EXPECT_EQ(whole.report.steps, 5);
  EXPECT_TRUE(whole.report.out_of_patience);
  EXPECT_EQ(whole.report.best->step, 2);
  EXPECT_EQ(whole.report.best->value, 5);
  EXPECT_EQ(whole.report.best_checkpoint, output / "checkpoints" / "global_step2");
  EXPECT_EQ(checkpoint::tags_of(output / "checkpoints"), (std::vector<std::string>{"global_step5", "global_step2"}));

  options.output = folder.path() / "parts";
  options.max_steps = 4;  // two evaluations without a better one
  EXPECT_FALSE(run_measured(comm::Group::alone(), options, value_after).report.out_of_patience);
  options.max_steps = 20;
  options.resume = "auto";
  const Trained rest = run_measured(comm::Group::alone(), options, value_after);
  EXPECT_EQ(rest.report.steps, 5);
  EXPECT_EQ(rest.report.best->step, 2);
  EXPECT_EQ(run_measured(comm::Group::alone(), options, value_after).report.trained, 0);
  // Of another metric the best is sought anew.
  options.best_by = "eval_rows";
  options.max_steps = 7;
  EXPECT_EQ(run_measured(comm::Group::alone(), options, value_after).report.best->step, 6);
}

TEST(Trainer, AMetricThatTheTaskDoesNotHaveIsRefused) {
  const test::TemporaryFolder folder;
  try {
    run_measured(comm::Group::alone(), {.output = folder.path() / "out", .max_steps = 1, .best_by = "eval_valeu"},
                 value_after);
    FAIL() << "there is no such metric";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'eval_value'?"));
  }
}

TEST(Trainer, AnEvaluationMayLookAtSomeSamples) {
  const test::TemporaryFolder folder;
  const Trained done =
      run_alone(0, {.output = folder.path() / "out", .max_steps = 1, .eval_samples = 5, .eval_at_start = true});
  const std::vector<size_t> every_second{0, 2, 4, 6, 8};
  EXPECT_NEAR(done.report.first->loss, rows_of(every_second, 0.5).y.square().mean().item<double>(), 1e-6);
  EXPECT_EQ(done.rows.front()["eval_samples"], 5);
}

TEST(Trainer, AnOutputThatHoldsARunIsNotWrittenOver) {
  const test::TemporaryFolder folder;
  run_alone(0, {.output = folder.path() / "out", .max_steps = 1});
  try {
    run_alone(0, {.output = folder.path() / "out", .max_steps = 1});
    FAIL() << "the run was written over";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the output already holds a run with checkpoints"));
  }
}

ErrorReport divergence_of(const std::shared_ptr<comm::Group>& world, const TrainerOptions& options,
                          const Broken& broken) {
  try {
    run(world, 1, options, broken);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kData);
    return error.report();
  }
  return {"it ended well", "", ""};
}

TEST(Trainer, ARunWhoseLossIsNoNumberAnyMoreStopsAndKeepsTheLastGoodCheckpoint) {
  const test::TemporaryFolder folder;
  const auto output = folder.path() / "out", checkpoints = output / "checkpoints";
  test::spawn_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    const ErrorReport report = divergence_of(
        world, {.output = output, .max_steps = 30, .save_steps = 2, .retention = {.keep_last = 1}, .max_bad_steps = 5},
        [&](int64_t step) { return world->rank() == 1 && step >= 5; });
    EXPECT_EQ(report.what, "training diverged: each of the last 5 steps had a loss or gradients that are not finite");
    EXPECT_EQ(report.where, "steps 5 to 9, loss nan");
    EXPECT_THAT(report.fix, HasSubstr("--resume " + (checkpoints / "global_step4").string()));
  });
  EXPECT_EQ(checkpoint::tags_of(checkpoints), (std::vector<std::string>{"global_step8", "global_step4"}));
  EXPECT_TRUE(checkpoint::read_manifest(checkpoints / "global_step8").diverged);
  EXPECT_FALSE(checkpoint::read_manifest(checkpoints / "global_step4").diverged);
  // One that goes on from there, with better luck, needs the good one no longer.
  run_alone(1, {.output = output,
                .max_steps = 12,
                .save_steps = 2,
                .retention = {.keep_last = 1},
                .resume = (checkpoints / "global_step4").string()});
  EXPECT_EQ(checkpoint::tags_of(checkpoints), (std::vector<std::string>{"global_step12"}));
}

TEST(Trainer, StepsThatAreNotFiniteNowAndThenAreNoDivergence) {
  const test::TemporaryFolder folder;
  const auto output = folder.path() / "out";
  const auto two_of_three = [](int64_t step) { return step % 3 != 0; };
  const Trained done =
      run(comm::Group::alone(), 1, {.output = output, .max_steps = 12, .max_bad_steps = 3}, two_of_three);
  EXPECT_EQ(done.report.trained, 12);
  const auto for_ever = [](int64_t step) { return step > 4; };
  EXPECT_EQ(
      run(comm::Group::alone(), 1, {.output = folder.path() / "on", .max_steps = 40, .max_bad_steps = 0}, for_ever)
          .report.steps,
      40);
}

TEST(Trainer, ARunThatTrainedNothingIsNotDone) {
  const test::TemporaryFolder folder;
  const ErrorReport report = divergence_of(comm::Group::alone(), {.output = folder.path() / "out", .max_steps = 3},
                                           [](int64_t) { return true; });
  EXPECT_THAT(report.what, HasSubstr("nothing was trained: all 3 steps of this run were skipped"));
}

TEST(Trainer, TwoRunsDoNotShareAnOutput) {
  const test::TemporaryFolder folder;
  const auto output = folder.path() / "out";
  const auto outcomes = test::outcomes_of_ranks(2, [&](const std::shared_ptr<comm::Group>& world) {
    const auto lock = world->rank() == 0 ? std::make_unique<storage::FolderLock>(output / "checkpoints") : nullptr;
    world->barrier("locked");
    if (world->rank() == 1) {
      try {
        run_alone(0, {.output = output, .max_steps = 1, .resume = "auto"});
      } catch (const Error& refused) {
        std::printf("%s\n", refused.what());
      }
    }
    world->barrier("tried");
  });
  EXPECT_THAT(outcomes[1].output, HasSubstr("another run saves into this folder: process "));
}

}  // namespace
}  // namespace tessera::train::trainer_test

// What a checkpoint says of a schedule's step, in this version's words and in those of earlier ones. Rates: see
// optim/schedule.h.
#include "tessera/engine/training_state.h"

#include <gtest/gtest.h>

#include "tessera/optim/running_schedule.h"

namespace tessera::engine::training_state_test {
namespace {

constexpr int kTotal = 10;

// lr 1 at the start, falling in a line to 0 at step 10: 1 - t / 10 once t steps are taken.
config::DsConfig linear() {
  return config::parse_ds_config(
      {{"train_batch_size", 1},
       {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1.0}}}}},
       {"scheduler", {{"type", "linear"}, {"params", {{"num_training_steps", kTotal}, {"num_warmup_steps", 0}}}}}},
      "the test", {});
}

TrainingState made(const config::DsConfig& config) {
  return {config, optim::schedules().find("linear", "").make(*config.scheduler), {{.lr = 1.0}}};
}

double rate_after(int64_t steps) { return 1 - static_cast<double>(steps) / kTotal; }

TEST(TrainingState, AdvancesTheScheduleWithStepsThatWereApplied) {
  const config::DsConfig config = linear();
  TrainingState state = made(config);
  for (const bool skipped : {false, true, false}) state.count_step(1, skipped);
  state.apply_schedule();
  EXPECT_DOUBLE_EQ(state.groups()[0].lr, rate_after(2));
}

TEST(TrainingState, LoadsWhatEarlierVersionsSavedOfTheSchedule) {
  const config::DsConfig config = linear();
  TrainingState state = made(config);
  nlohmann::json saved = state.save();
  saved.erase("last_batch_iteration");
  saved["global_steps"] = 8;
  saved["skipped_steps"] = 1;
  state.load(saved, /*keeps_schedule=*/true);  // without a word: it began with the first step
  EXPECT_DOUBLE_EQ(state.groups()[0].lr, rate_after(7));
  saved["schedule_begins_after"] = 4;
  state.load(saved, /*keeps_schedule=*/true);
  EXPECT_DOUBLE_EQ(state.groups()[0].lr, rate_after(3));
}

TEST(TrainingState, SavesAndLoadsAProgramsScheduleButLeavesItsStepsToTheProgram) {
  const config::DsConfig config = linear();
  TrainingState state = made(config);
  const auto program = std::make_shared<optim::RunningSchedule>(
      optim::schedules().find("linear", "").make(*config.scheduler), std::vector<optim::ParamGroup>{{.lr = 1.0}});
  state.set_schedule(program);
  state.count_step(1, /*skipped=*/false);
  EXPECT_EQ(program->n(), -1);
  program->set_n(5);
  const nlohmann::json saved = state.save();
  program->set_n(0);
  state.load(saved, /*keeps_schedule=*/false);
  EXPECT_EQ(program->n(), 0);
  state.load(saved, /*keeps_schedule=*/true);
  EXPECT_EQ(program->n(), 5);
  EXPECT_DOUBLE_EQ(program->values(0).lr, rate_after(6));

  TrainingState other = made(config);
  other.load(saved, /*keeps_schedule=*/true);
  EXPECT_DOUBLE_EQ(other.groups()[0].lr, rate_after(6));
}

}  // namespace
}  // namespace tessera::engine::training_state_test

#include "tessera/pipeline/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tessera/base/error.h"
#include "tessera/pipeline/check.h"
#include "tessera/pipeline/schedule_kinds.h"

namespace tessera::pipeline::schedule_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Le;

constexpr Work kF = Work::kForward, kB = Work::kBackward, kI = Work::kBackwardInput, kW = Work::kBackwardWeights;

// Every schedule in every size that it can have, up to these.
void each_schedule(const std::function<void(const Schedule&, const ScheduleKind&, const ScheduleSize&)>& visit) {
  for (const auto& entry : schedules().entries()) {
    const ScheduleKind& kind = entry.make;
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int micro = 1; micro <= 24; ++micro) {
        for (int stages = kind.stages_per_rank == 0 ? 2 : kind.stages_per_rank;
             stages <= (kind.stages_per_rank == 0 ? 4 : kind.stages_per_rank); ++stages) {
          const ScheduleSize size{.ranks = ranks, .micro_batches = micro, .stages_per_rank = stages};
          if (!kind.why_not(size).empty()) continue;
          SCOPED_TRACE(std::string(entry.name) + " on " + std::to_string(ranks) + " ranks, " + std::to_string(micro) +
                       " micro batches, " + std::to_string(stages) + " stages a rank");
          visit(make_schedule(entry.name, size), kind, size);
        }
      }
    }
  }
}

TEST(PipelineSchedule, EverySizeOfEveryScheduleRunsAndKeepsNoMoreThanItSays) {
  int seen = 0;
  each_schedule([&](const Schedule& schedule, const ScheduleKind& kind, const ScheduleSize& size) {
    ++seen;
    EXPECT_EQ(why_it_does_not_run(schedule), "");
    EXPECT_EQ(schedule.stages(), size.ranks * size.stages_per_rank);
    const std::vector<int> kept = kept_activations(schedule);
    for (int rank = 0; rank < size.ranks; ++rank) {
      EXPECT_LE(kept[static_cast<size_t>(rank)], kind.most_kept(rank, size)) << "rank " << rank;
    }
  });
  EXPECT_GT(seen, 700);
}

TEST(PipelineSchedule, OneForwardOneBackwardIsThatOfThePaper) {
  const Schedule schedule = make_schedule("1F1B", {.ranks = 2, .micro_batches = 3});
  EXPECT_THAT(schedule.actions[0], ElementsAre(Action{kF, 0, 0}, Action{kF, 0, 1}, Action{kB, 0, 0}, Action{kF, 0, 2},
                                               Action{kB, 0, 1}, Action{kB, 0, 2}));
  EXPECT_THAT(schedule.actions[1], ElementsAre(Action{kF, 1, 0}, Action{kB, 1, 0}, Action{kF, 1, 1}, Action{kB, 1, 1},
                                               Action{kF, 1, 2}, Action{kB, 1, 2}));
  EXPECT_EQ(schedule.name, "1f1b");
}

TEST(PipelineSchedule, StagesGoRoundTheRanksOrBack) {
  EXPECT_THAT(make_schedule("interleaved", {.ranks = 2, .micro_batches = 4, .stages_per_rank = 3}).rank_of_stage,
              ElementsAre(0, 1, 0, 1, 0, 1));
  const Schedule folded = make_schedule("dualpipev", {.ranks = 3, .micro_batches = 6});
  EXPECT_THAT(folded.rank_of_stage, ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_THAT(folded.stages_of(1), ElementsAre(1, 4));
}

// Of p ranks, a stage's forward F, whole backward B, and its part for the weights W: GPipe and 1F1B (p - 1)(F + B);
// interleaved the same of stages that are a v-th of what a rank has; ZB-H1 (p - 1)(F + B - 2W) while W is no longer
// than the others. DualPipe's authors have (p - 1)(F&B + B - 3W) for forwards and backwards that run at once; one after
// the other, the forward's result leaves before the backward begins.
TEST(PipelineSchedule, RanksIdleAsLongAsTheFormulasSay) {
  for (const StageTimes& times : {StageTimes{1, 1, 1}, StageTimes{2, 1, 1}, StageTimes{1, 2, 1}, StageTimes{3, 4, 2}}) {
    const double forward = times.forward, weights = times.backward_weights, backward = times.backward_input + weights;
    for (int p = 1; p <= 8; ++p) {
      SCOPED_TRACE(std::to_string(p) + " ranks");
      const ScheduleSize size{.ranks = p, .micro_batches = 3 * p};
      const auto idle = [&](const char* name, const ScheduleSize& of) {
        const Timing timing = play(make_schedule(name, of), times);
        std::vector<double> bubbles;
        for (int rank = 0; rank < p; ++rank) bubbles.push_back(timing.bubble(rank));
        return bubbles;
      };
      EXPECT_THAT(idle("gpipe", size), Each((p - 1) * (forward + backward)));
      EXPECT_THAT(idle("1f1b", size), Each((p - 1) * (forward + backward)));
      EXPECT_THAT(idle("zb1p", size), Each((p - 1) * (forward + backward - 2 * weights)));
      for (int v = 2; v <= 4; ++v) {
        EXPECT_THAT(idle("interleaved", {.ranks = p, .micro_batches = 3 * p, .stages_per_rank = v}),
                    Each((p - 1) * (forward + backward)));
      }
      EXPECT_THAT(idle("dualpipev", size), Each(Le((p - 1) * (forward + 2 * backward - 3 * weights))));
    }
  }
}

TEST(PipelineSchedule, AShortStepHasTheSameStages) {
  for (const auto& entry : schedules().entries()) {
    const Schedule schedule = make_schedule(entry.name, {.ranks = 3, .micro_batches = 6});
    for (int micro = 1; micro <= 6; ++micro) {
      SCOPED_TRACE(std::string(entry.name) + ", " + std::to_string(micro));
      const Schedule other = with_micro_batches(schedule, micro);
      EXPECT_EQ(why_it_does_not_run(other), "");
      EXPECT_EQ(other.micro_batches, micro);
      EXPECT_EQ(other.rank_of_stage, schedule.rank_of_stage);
    }
    EXPECT_EQ(with_micro_batches(schedule, 6).actions, schedule.actions);
  }
}

TEST(PipelineSchedule, TheShareThatRanksIdleIsThatOfTheFormula) {
  for (const int n : {1, 4, 9}) {  // (p - 1) / (n + p - 1)
    EXPECT_DOUBLE_EQ(idle_share(make_schedule("1f1b", {.ranks = 4, .micro_batches = n})), 3.0 / (n + 3));
  }
}

TEST(PipelineSchedule, MessagesThatTakeTimeMakeItLonger) {
  const Schedule schedule = make_schedule("1f1b", {.ranks = 3, .micro_batches = 1});
  EXPECT_EQ(play(schedule, {.message = 5}).length, 3 * 3 + 4 * 5);  // two there, two back
}

TEST(PipelineSchedule, WhatCannotRunIsSaid) {
  Schedule schedule = make_schedule("1f1b", {.ranks = 2, .micro_batches = 2});
  const auto with = [&](int rank, std::vector<Action> actions) {
    Schedule changed = schedule;
    changed.actions[static_cast<size_t>(rank)] = std::move(actions);
    return why_it_does_not_run(changed);
  };
  EXPECT_EQ(
      with(0, {{kB, 0, 0}, {kF, 0, 0}, {kF, 0, 1}, {kB, 0, 1}}),
      "rank 0 waits for ever before the backward of micro batch 0 on stage 0: for the forward of micro batch 0 on "
      "stage 0 and the backward (input) of micro batch 0 on stage 1");
  EXPECT_EQ(with(1, {{kF, 1, 0}, {kB, 1, 0}, {kF, 1, 1}}),
            "the backward of micro batch 1 on stage 1 comes 0 times whole, 0 times for the input and 0 times for the "
            "weights");
  Schedule alone = make_schedule("zb1p", {.ranks = 1, .micro_batches = 1});
  alone.actions[0] = {{kF, 0, 0}, {kW, 0, 0}, {kI, 0, 0}};
  EXPECT_EQ(
      why_it_does_not_run(alone),
      "rank 0 waits for ever before the backward (weights) of micro batch 0 on stage 0: for the backward (input) of "
      "micro batch 0 on stage 0");
  EXPECT_THAT(with(1, {{kF, 1, 0}, {kF, 1, 0}}), HasSubstr("there are 2 of the forward of micro batch 0 on stage 1"));
  EXPECT_THAT(with(1, {{kF, 0, 0}}), HasSubstr("which is on rank 0"));
  EXPECT_THAT(with(1, {{kF, 1, 2}}), HasSubstr("which does not exist"));
}

std::string refusal(const std::string& name, const ScheduleSize& size) {
  try {
    make_schedule(name, size, "run.yaml: parallel");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    return error.what();
  }
  return "";
}

TEST(PipelineSchedule, WhatThereIsNotIsRefusedWithWhatThereIs) {
  EXPECT_THAT(refusal("1f1", {.ranks = 2, .micro_batches = 2}), AllOf(HasSubstr("1f1b"), HasSubstr("run.yaml")));
  EXPECT_THAT(refusal("interleaved", {.ranks = 4, .micro_batches = 6}), HasSubstr("use 4 or 8"));
  EXPECT_THAT(refusal("interleaved", {.ranks = 4, .micro_batches = 3}), HasSubstr("use 4\n"));
  EXPECT_THAT(refusal("dualpipev", {.ranks = 4, .micro_batches = 7}), HasSubstr("use 8 or more, not 7"));
  EXPECT_THAT(refusal("1f1b", {.ranks = 4, .micro_batches = 8, .stages_per_rank = 2}),
              HasSubstr("has 1 a rank, not 2"));
}

}  // namespace
}  // namespace tessera::pipeline::schedule_test

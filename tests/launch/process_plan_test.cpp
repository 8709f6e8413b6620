#include "tessera/launch/process_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::launch::process_plan_test {
namespace {

using ::testing::ElementsAre;

TEST(ProcessPlan, EachRankIsToldItsPlace) {
  const auto plans = plan_local({.nproc = 3, .command = {"prog", "-x"}}, {.cores = 8, .master_port = 29511});
  ASSERT_EQ(plans.size(), 3u);
  const Environment expected = {
      {"RANK", "2"},
      {"WORLD_SIZE", "3"},
      {"LOCAL_RANK", "2"},
      {"LOCAL_WORLD_SIZE", "3"},
      {"LOCAL_SIZE", "3"},
      {"CROSS_RANK", "0"},
      {"CROSS_SIZE", "1"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "29511"},
      {"OMP_NUM_THREADS", "2"},  // 8 cores / 3 ranks, rounded down
  };
  EXPECT_EQ(plans[2].environment, expected);
  EXPECT_THAT(plans[2].command, ElementsAre("prog", "-x"));
}

TEST(ProcessPlan, AllRanksGetTheRunsSecret) {
  for (const RankPlan& plan : plan_local({.nproc = 2, .command = {"prog"}}, {.secret = "0123456789abcdef"})) {
    EXPECT_EQ(plan.environment.at("TESSERA_SECRET"), "0123456789abcdef");
  }
}

TEST(ProcessPlan, OnlyRankZeroReadsStandardInput) {
  const auto plans = plan_local({.nproc = 2, .command = {"prog"}}, {});
  EXPECT_TRUE(plans[0].inherits_input);
  EXPECT_FALSE(plans[1].inherits_input);
}

TEST(ProcessPlan, RankZeroIsPlainOnlyWhenAskedFor) {
  EXPECT_FALSE(plan_local({.nproc = 2, .command = {"prog"}}, {})[0].plain_output);
  const auto plans = plan_local({.nproc = 2, .command = {"prog"}, .output = LaunchOptions::Output::kRankZeroPlain}, {});
  EXPECT_TRUE(plans[0].plain_output);
  EXPECT_FALSE(plans[1].plain_output);
}

TEST(ProcessPlan, AThreadCountThatTheUserGaveStays) {
  const LaunchOptions run{.nproc = 2, .command = {"prog"}};
  EXPECT_FALSE(plan_local(run, {.cores = 8, .omp_threads_given = true})[0].environment.contains("OMP_NUM_THREADS"));
  LaunchOptions extra = run;
  extra.extra_environment = {{"OMP_NUM_THREADS", "7"}};
  EXPECT_EQ(plan_local(extra, {.cores = 8})[0].environment.at("OMP_NUM_THREADS"), "7");
}

TEST(ProcessPlan, MoreRanksThanCoresStillGetOneThreadEach) {
  EXPECT_EQ(threads_per_rank(2, 5), 1);
  EXPECT_EQ(threads_per_rank(16, 4), 4);
}

TEST(ProcessPlan, ARanksPlaceWinsOverExtraVariables) {
  LaunchOptions run{.nproc = 1, .command = {"prog"}};
  run.extra_environment = {{"RANK", "9"}, {"COLOUR", "red"}};
  const auto plans = plan_local(run, {});
  EXPECT_EQ(plans[0].environment.at("RANK"), "0");
  EXPECT_EQ(plans[0].environment.at("COLOUR"), "red");
}

TEST(ProcessPlan, RefusesNoRanksAndNoProgram) {
  EXPECT_THROW(plan_local({.nproc = 0, .command = {"prog"}}, {}), Error);
  EXPECT_THROW(plan_local({.nproc = 1}, {}), Error);
}

TEST(Environment, AChangedNameReplacesTheInheritedOne) {
  EXPECT_THAT(merge_environment({"A=1", "RANK=5", "RANKING=x=y"}, {{"RANK", "0"}}),
              ElementsAre("A=1", "RANKING=x=y", "RANK=0"));
}

}  // namespace
}  // namespace tessera::launch::process_plan_test

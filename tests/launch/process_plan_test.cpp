#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/launch/cluster_plan.h"
#include "tessera/launch/host_filter.h"

namespace tessera::launch::process_plan_test {
namespace {

using ::testing::ElementsAre;

ClusterPlan ranks_of_prog(int nproc) {
  return {.hosts = {{"localhost", first_slots(nproc)}}, .program = {.name = "prog"}};
}

TEST(ProcessPlan, EachRankIsToldItsPlace) {
  ClusterPlan cluster = ranks_of_prog(3);
  cluster.program.arguments = {"-x"};
  cluster.master_port = 29511;
  const auto plans = plan_node(cluster, {.cores = 8});
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
  for (const RankPlan& plan : plan_node(ranks_of_prog(2), {.secret = "0123456789abcdef"})) {
    EXPECT_EQ(plan.environment.at("TESSERA_SECRET"), "0123456789abcdef");
  }
}

TEST(ProcessPlan, OnlyRankZeroReadsStandardInput) {
  const auto plans = plan_node(ranks_of_prog(2), {});
  EXPECT_TRUE(plans[0].inherits_input);
  EXPECT_FALSE(plans[1].inherits_input);
}

TEST(ProcessPlan, RankZeroIsPlainOnlyWhenAskedFor) {
  ClusterPlan cluster = ranks_of_prog(2);
  EXPECT_FALSE(plan_node(cluster, {})[0].plain_output);
  cluster.output = RankOutput::kRankZeroPlain;
  const auto plans = plan_node(cluster, {});
  EXPECT_TRUE(plans[0].plain_output);
  EXPECT_FALSE(plans[1].plain_output);
}

TEST(ProcessPlan, AThreadCountThatTheUserGaveStays) {
  ClusterPlan cluster = ranks_of_prog(2);
  EXPECT_FALSE(plan_node(cluster, {.cores = 0})[0].environment.contains("OMP_NUM_THREADS"));
  cluster.environment = {{"OMP_NUM_THREADS", "7"}};
  EXPECT_EQ(plan_node(cluster, {.cores = 8})[0].environment.at("OMP_NUM_THREADS"), "7");
}

TEST(ProcessPlan, MoreRanksThanCoresStillGetOneThreadEach) {
  EXPECT_EQ(threads_per_rank(2, 5), 1);
  EXPECT_EQ(threads_per_rank(16, 4), 4);
}

TEST(ProcessPlan, ARanksPlaceWinsOverExtraVariables) {
  ClusterPlan cluster = ranks_of_prog(1);
  cluster.environment = {{"RANK", "9"}, {"COLOUR", "red"}};
  const auto plans = plan_node(cluster, {});
  EXPECT_EQ(plans[0].environment.at("RANK"), "0");
  EXPECT_EQ(plans[0].environment.at("COLOUR"), "red");
}

TEST(ProcessPlan, RefusesNoRanksAndNoProgram) {
  EXPECT_THROW(check_host_options({.num_gpus = 0}), Error);
  EXPECT_THROW(program_of({}, {}), Error);
}

TEST(Environment, AChangedNameReplacesTheInheritedOne) {
  EXPECT_THAT(merge_environment({"A=1", "RANK=5", "RANKING=x=y"}, {{"RANK", "0"}}),
              ElementsAre("A=1", "RANKING=x=y", "RANK=0"));
}

}  // namespace
}  // namespace tessera::launch::process_plan_test

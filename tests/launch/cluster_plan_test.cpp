#include "tessera/launch/cluster_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/launch/node_part.h"

namespace tessera::launch::cluster_plan_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ClusterPlan two_hosts() {
  return {.hosts = {{"a", {0, 1}}, {"b", {2, 5, 7}}},
          .program = {.interpreter = {"python3", "-u"},
                      .name = "train.py",
                      .arguments = {"--x"},
                      .passes_local_rank = true},
          .master_addr = "10.0.0.1",
          .master_port = 29500,
          .sets_devices = true};
}

TEST(ClusterPlan, RanksAreNumberedHostByHost) {
  const auto plans = plan_node(two_hosts(), {.node_rank = 1});
  ASSERT_EQ(plans.size(), 3u);
  const Environment expected = {{"RANK", "4"},
                                {"WORLD_SIZE", "5"},
                                {"LOCAL_RANK", "2"},
                                {"LOCAL_WORLD_SIZE", "3"},
                                {"LOCAL_SIZE", "3"},
                                {"CROSS_RANK", "1"},
                                {"CROSS_SIZE", "2"},
                                {"MASTER_ADDR", "10.0.0.1"},
                                {"MASTER_PORT", "29500"},
                                {"CUDA_VISIBLE_DEVICES", "2,5,7"}};
  EXPECT_EQ(plans[2].environment, expected);
  EXPECT_THAT(plans[2].command, ElementsAre("python3", "-u", "train.py", "--local_rank=2", "--x"));
}

TEST(ClusterPlan, LinesOfSeveralHostsNameTheHost) {
  EXPECT_EQ(plan_node(two_hosts(), {.node_rank = 1, .label = "b"})[0].prefix, "[b rank 2] ");
  EXPECT_EQ(plan_node(two_hosts(), {})[1].prefix, "[rank 1] ");
}

TEST(ClusterPlan, ARankIsBoundToItsShareOfTheCores) {
  ClusterPlan cluster = two_hosts();
  cluster.binds_cores = true;
  cluster.core_list = "0-3";
  const auto plans = plan_node(cluster, {.cores = 8, .numa_nodes = {{0, 1, 2, 3}}});
  EXPECT_THAT(plans[1].command,
              ElementsAre("numactl", "-C", "2,3", "python3", "-u", "train.py", "--local_rank=1", "--x"));
  EXPECT_EQ(plans[1].environment.at("OMP_NUM_THREADS"), "2");
}

TEST(ClusterPlan, EachRankMayWriteToAFileOfItsOwn) {
  ClusterPlan cluster = two_hosts();
  cluster.log_folder = "logs";
  EXPECT_EQ(plan_node(cluster, {.node_rank = 1, .time = "20260102"})[0].log_file, "logs/20260102_rank2.log");
}

TEST(ClusterPlan, AHostThatIsNotThereIsRefused) {
  try {
    plan_node(two_hosts(), {.node_rank = 2});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.report().what, "--node_rank is 2, but there are 2 machines");
    EXPECT_EQ(error.report().fix, "use 0 to 1");
  }
  EXPECT_THROW(check_own_node_rank({.no_ssh = true}, two_hosts().hosts), Error);
}

TEST(NodePart, ArrivesAsItWasSent) {
  ClusterPlan cluster = two_hosts();
  cluster.environment = {{"KEY", "it's \"quoted\"\n$HOME"}};
  cluster.program.arguments = {"a b", "", "ä"};
  const NodePart part{.cluster = cluster, .node_rank = 1, .saves_pid = true, .folder = "/run"};
  const std::string line = node_part_line(part);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const NodePart found = parse_node_part(line);
  EXPECT_EQ(found.cluster.hosts, cluster.hosts);
  EXPECT_EQ(found.cluster.environment, cluster.environment);
  EXPECT_EQ(found.cluster.program.arguments, cluster.program.arguments);
  EXPECT_EQ(found.node_rank, 1);
  EXPECT_EQ(found.folder, "/run");
  EXPECT_EQ(plan_node(found.cluster, {.node_rank = 1})[2].environment,
            plan_node(cluster, {.node_rank = 1})[2].environment);
}

TEST(NodePart, RefusesALineOfAnotherVersionAndWordsThatAreNotText) {
  EXPECT_THROW(parse_node_part("{}"), Error);
  EXPECT_THROW(parse_node_part(""), Error);
  ClusterPlan cluster = two_hosts();
  cluster.program.name = "\xff";
  EXPECT_THROW(node_part_line({.cluster = cluster}), Error);
}

TEST(NodePart, SignalsAreWords) {
  EXPECT_EQ(word_of_signal(2), "signal 2\n");
  EXPECT_EQ(signal_of_word("signal 15"), 15);
  EXPECT_EQ(signal_of_word("stop"), 0);
}

}  // namespace
}  // namespace tessera::launch::cluster_plan_test

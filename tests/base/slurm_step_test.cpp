// The environments are those that slurmd 22.05 gave to batch scripts and tasks.
#include "tessera/base/slurm_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "tessera/base/error.h"

namespace tessera::slurm_step_test {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

class OfSlurm : public ::testing::Test {
 protected:
  OfSlurm() { clear(); }
  ~OfSlurm() override { clear(); }

  static void set(const Variables& variables) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }

  // sbatch --nodes=3 --ntasks=5
  static Variables batch_script() {
    return {{"SLURM_JOB_ID", "7"},        {"SLURM_PROCID", "0"},
            {"SLURM_LOCALID", "0"},       {"SLURM_NODEID", "0"},
            {"SLURM_NTASKS", "5"},        {"SLURM_JOB_NODELIST", "node[1-3]"},
            {"SLURM_JOB_NUM_NODES", "3"}, {"SLURM_TASKS_PER_NODE", "3,1(x2)"}};
  }

  // Task 3 of srun in it, on the second host.
  static Variables task() {
    Variables made = batch_script();
    made["SLURM_PROCID"] = "3";
    made["SLURM_NODEID"] = "1";
    for (const auto& [name, value] : Variables{{"SLURM_STEP_ID", "2"},
                                               {"SLURM_STEP_NUM_TASKS", "5"},
                                               {"SLURM_STEP_NUM_NODES", "3"},
                                               {"SLURM_STEP_NODELIST", "node[1-3]"},
                                               {"SLURM_STEP_TASKS_PER_NODE", "3,1(x2)"}}) {
      made[name] = value;
    }
    return made;
  }

  static std::string refusal() {
    try {
      slurm_step_of_environment();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.report().what;
    }
    return "nothing was refused";
  }

 private:
  static void clear() {
    for (const char* const name :
         {"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_JOB_NODELIST",
          "SLURM_JOB_NUM_NODES", "SLURM_TASKS_PER_NODE", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS",
          "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "MASTER_ADDR", "MASTER_PORT",
          "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID"}) {
      unsetenv(name);
    }
  }
};

TEST_F(OfSlurm, ATaskKnowsItsPlaceWhereHostsHaveUnequalCounts) {
  set(task());
  const auto step = slurm_step_of_environment();
  ASSERT_TRUE(step);
  EXPECT_EQ(step->rank, 3);
  EXPECT_EQ(step->tasks, 5);
  EXPECT_EQ(step->local_rank, 0);
  EXPECT_EQ(step->local_tasks, 1);
  EXPECT_EQ(step->node, 1);
  EXPECT_EQ(step->nodes, 3);
  EXPECT_EQ(step->master_addr, "node1");
  EXPECT_EQ(step->master_port, slurm_port(7, 2));
  set({{"SLURM_PROCID", "2"}, {"SLURM_LOCALID", "2"}, {"SLURM_NODEID", "0"}});
  EXPECT_EQ(slurm_step_of_environment()->local_tasks, 3);
}

TEST_F(OfSlurm, AStepOnSomeHostsOfTheJobMeetsAtItsOwnFirst) {
  set(task());
  set({{"SLURM_STEP_NODELIST", "node[2-3]"},
       {"SLURM_STEP_NUM_NODES", "2"},
       {"SLURM_STEP_NUM_TASKS", "2"},
       {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
       {"SLURM_PROCID", "1"}});
  EXPECT_EQ(slurm_step_of_environment()->master_addr, "node2");
}

TEST_F(OfSlurm, ABatchScriptIsNoTaskAndItsJobMayHaveWantedSome) {
  set(batch_script());
  EXPECT_FALSE(is_in_slurm_step());
  EXPECT_FALSE(slurm_step_of_environment());
  EXPECT_EQ(tasks_of_slurm_job_without_step(), 5);
  set({{"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(tasks_of_slurm_job_without_step(), 0);
}

TEST_F(OfSlurm, RanksOfAnMpirunThatAStepCarriesAreNotItsTasks) {
  set(task());
  set({{"OMPI_COMM_WORLD_RANK", "1"}});
  EXPECT_FALSE(slurm_step_of_environment());
}

TEST_F(OfSlurm, AnAddressOrAPortThatIsSetWins) {
  set(task());
  set({{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(slurm_step_of_environment()->master_addr, "10.0.0.1");
  EXPECT_EQ(slurm_step_of_environment()->master_port, 1234);
}

TEST_F(OfSlurm, WhatDoesNotFitIsNamed) {
  set(task());
  set({{"SLURM_PROCID", "5"}});
  EXPECT_EQ(refusal(), "SLURM_PROCID is 5");
  set({{"SLURM_PROCID", "3"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}});
  EXPECT_THAT(refusal(), HasSubstr("SLURM_STEP_TASKS_PER_NODE is '2(x2)', which does not fit SLURM_NODEID=1"));
  unsetenv("SLURM_STEP_TASKS_PER_NODE");
  EXPECT_EQ(refusal(), "the step is on 3 hosts but SLURM_STEP_TASKS_PER_NODE is not set");
  unsetenv("SLURM_PROCID");
  EXPECT_EQ(refusal(), "SLURM_STEP_ID is set but SLURM_PROCID is not");
}

TEST(SlurmPorts, JobsThatFollowOneAnotherAndTheirStepsHavePortsOfTheirOwn) {
  std::set<int> ports;
  for (uint64_t job = 4'000'000'000; job < 4'000'000'200; ++job) {
    for (uint64_t step = 0; step < 100; ++step) ports.insert(slurm_port(job, step));
  }
  EXPECT_EQ(ports.size(), 200u * 100u);
  EXPECT_GE(*ports.begin(), 10'000);
  EXPECT_LT(*ports.rbegin(), 32'000);
}

}  // namespace
}  // namespace tessera::slurm_step_test

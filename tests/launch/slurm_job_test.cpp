// Runs on hosts that Slurm chooses: those of a job, and the script that makes one. tests/slurm runs them.
#include "tessera/launch/slurm_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "tessera/base/error.h"
#include "tessera/launch/runners.h"
#include "tessera/launch/sbatch_script.h"
#include "tests/launch/started_tool.h"
#include "tests/support/temporary_folder.h"

namespace tessera::launch::slurm_job_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class SlurmJob : public ::testing::Test {
 protected:
  SlurmJob() { clear(); }
  ~SlurmJob() override { clear(); }

  // sbatch --nodes=3 --ntasks=5
  static void be_in_job() {
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("SLURM_JOB_NODELIST", "node[1-3]", 1);
    setenv("SLURM_NTASKS", "5", 1);
    setenv("SLURM_TASKS_PER_NODE", "3,1(x2)", 1);
  }

  static LaunchRequest request() { return {.program = {.name = "./train"}, .launcher = "slurm"}; }

  static std::string command(const LaunchRequest& request) { return launch_text(decide(request)); }

  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.report().what;
    }
    return "nothing was refused";
  }

 private:
  static void clear() {
    for (const char* const name : {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE"}) {
      unsetenv(name);
    }
  }
};

TEST_F(SlurmJob, GivesEachHostAsManyRanksAsItHasTasksThere) {
  be_in_job();
  EXPECT_THAT(slurm_pool(request()),
              ::testing::ElementsAre(HostSlots{"node1", {0, 1, 2}}, HostSlots{"node2", {0}}, HostSlots{"node3", {0}}));
  EXPECT_THAT(command(request()), StartsWith("srun -n 5 --nodes 3 --export=ALL "));
}

TEST_F(SlurmJob, GivesEachHostAsManyRanksAsTheCommandLineSaysOrOne) {
  be_in_job();
  LaunchRequest two = request();
  two.num_nodes = 2;
  two.num_gpus = 4;
  EXPECT_THAT(command(two), StartsWith("srun -n 8 --nodes 2 --ntasks-per-node 4 --export=ALL "));
  unsetenv("SLURM_NTASKS");
  EXPECT_THAT(command(request()), StartsWith("srun -n 3 --nodes 3 --ntasks-per-node 1 --export=ALL "));
  LaunchRequest some = request();
  some.include = "node3@node1";
  EXPECT_THAT(command(some), StartsWith("srun -n 2 --nodes 2 --ntasks-per-node 1 --nodelist node1,node3 --export="));
}

TEST_F(SlurmJob, OutsideOfOneSrunAsksForTheHosts) {
  LaunchRequest four = request();
  four.num_nodes = 4;
  four.launcher_args = "--partition=gpu";
  EXPECT_THAT(command(four), StartsWith("srun -n 4 --nodes 4 --ntasks-per-node 1 --partition=gpu --export=ALL "));
  LaunchRequest some = request();
  some.include = "node1";
  EXPECT_THAT(refusal([&] { decide(some); }), HasSubstr("this process is in no job of Slurm's"));
}

TEST_F(SlurmJob, HasNoMoreHostsThanItHas) {
  be_in_job();
  LaunchRequest four = request();
  four.num_nodes = 4;
  EXPECT_EQ(refusal([&] { decide(four); }), "--num_nodes is 4, and the job has 3 nodes");
}

TEST_F(SlurmJob, ATaskGetsTheVariablesOfARankAndItsOwnCode) {
  StartedTool tool(
      {"launch", "--slurm-task", "sh", "-c", "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE; exit 5"},
      {{"SLURM_STEP_ID", "0"},
       {"SLURM_PROCID", "1"},
       {"SLURM_STEP_NUM_TASKS", "2"},
       {"SLURM_LOCALID", "1"},
       {"SLURM_STEP_NODELIST", "a"}});
  EXPECT_EQ(tool.wait(), 5);
  EXPECT_EQ(tool.out(), "1 2 1 2\n");
  StartedTool none({"launch", "--slurm-task", "true"});
  EXPECT_EQ(none.wait(), 2);
  EXPECT_THAT(none.err(), HasSubstr("--slurm-task is for tasks that srun starts"));
}

TEST_F(SlurmJob, AScriptAsksForWhatTheCommandLineSays) {
  be_in_job();  // which does not matter to the one that the script is for
  LaunchRequest asked = request();
  asked.launcher.clear();
  asked.num_nodes = 4;
  asked.num_gpus = 8;
  asked.launcher_args = "--partition=gpu --gres gpu:8";
  asked.program.arguments = {"--text", "two words"};
  const std::string script = sbatch_script(decide_for_job(asked), job_command(asked));
  EXPECT_THAT(script, StartsWith("#!/bin/bash\n#SBATCH --job-name=train\n#SBATCH --nodes=4\n"
                                 "#SBATCH --ntasks-per-node=8\n"));
  EXPECT_THAT(script, HasSubstr("\n#SBATCH --partition=gpu\n#SBATCH --gres gpu:8\n"));
  EXPECT_THAT(script, HasSubstr(" launch --slurm-task --no_python --no_local_rank ./train --text 'two words' &\n"));
  EXPECT_THAT(script, Not(HasSubstr("SLURM_ARRAY_TASK_ID")));
  const std::string training =
      sbatch_script(decide_for_job(asked), {.name = "a b", .words = {"tessera", "train"}, .output = "my out"});
  EXPECT_THAT(training, HasSubstr("#SBATCH --job-name=a-b\n"));
  EXPECT_THAT(training, HasSubstr("more=(--set \"output=\"'my out'\"-$SLURM_ARRAY_TASK_ID\")"));
  EXPECT_THAT(training, HasSubstr("srun --wait=60 tessera train \"${more[@]}\" &\n"));
}

TEST_F(SlurmJob, AScriptNamesTheHostsOfAHostfile) {
  const test::TemporaryFolder folder;
  LaunchRequest asked = request();
  asked.hostfile = (folder.path() / "hosts").string();
  std::ofstream(asked.hostfile) << "a slots=2\nb slots=2\n";
  EXPECT_THAT(sbatch_script(decide_for_job(asked), job_command(asked)), HasSubstr("#SBATCH --nodelist=a,b\n"));
  std::ofstream(asked.hostfile) << "a slots=2\nb slots=1\n";
  EXPECT_THAT(refusal([&] { decide_for_job(asked); }), HasSubstr("the same number of slots on every machine"));
}

TEST_F(SlurmJob, WhatAScriptHasNoUseForIsRefusedByName) {
  LaunchRequest ssh = request();
  ssh.launcher = "ssh";
  EXPECT_EQ(refusal([&] { decide_for_job(ssh); }),
            "--print-sbatch is for Slurm, and --launcher ssh is for something else");
  LaunchRequest logs = request();
  logs.enable_each_rank_log = "logs";
  EXPECT_THAT(refusal([&] { decide_for_job(logs); }), HasSubstr("--enable_each_rank_log does not work with"));
  LaunchRequest words = request();
  words.launcher_args = "gpu";
  EXPECT_EQ(refusal([&] { sbatch_script(decide_for_job(words), job_command(words)); }), "'gpu' is no option of sbatch");
  StartedTool tool({"launch", "--print-sbatch", "--max-restarts", "2", "true"});
  EXPECT_EQ(tool.wait(), 2);
  EXPECT_THAT(tool.err(), HasSubstr("--max-restarts does not go with --print-sbatch"));
}

}  // namespace
}  // namespace tessera::launch::slurm_job_test

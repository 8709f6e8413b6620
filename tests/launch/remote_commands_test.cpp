// Command lines of DeepSpeed 0.19.8 for the same options, word by word.
#include "tessera/launch/remote_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::launch::remote_commands_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Words = std::vector<std::string>;

// deepspeed … train.py --x "a b", on two hosts of two slots.
RemoteRun two_hosts() {
  const std::vector<HostSlots> hosts = {{"worker-0", {0, 1}}, {"worker-1", {0, 1}}};
  RemoteRun run{.pool = hosts,
                .hosts = hosts,
                .world_info = "INFO",
                .exports = {{"KEY", "value"}},
                .folder = "/run",
                .hostfile = "/job/hostfile",
                .node_launcher = {"python", "-u", "-m", "deepspeed.launcher.launch"}};
  run.request.program = {
      .interpreter = {"python", "-u"}, .name = "train.py", .arguments = {"--x", "a b"}, .passes_local_rank = true};
  run.request.master_addr = "10.0.0.1";
  run.request.master_port = 29500;
  return run;
}

RemoteCommand command_by(const std::string& launcher, const RemoteRun& run) {
  check_remote_options(launcher, run.request);
  check_remote_slots(launcher, run);
  return remote_launchers().find(launcher, "--launcher").make.command(run);
}

std::string refusal_by(const std::string& launcher, const RemoteRun& run) {
  try {
    command_by(launcher, run);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.report().what;
  }
  ADD_FAILURE() << launcher << " refused nothing";
  return "";
}

TEST(RemoteCommands, Pdsh) {
  RemoteRun run = two_hosts();
  run.request.launcher_args = "-q 'two words'";
  const RemoteCommand command = command_by("pdsh", run);
  EXPECT_THAT(command.arguments,
              ElementsAre("pdsh", "-S", "-f", "1024", "-w", "worker-0,worker-1", "-q", "two words",
                          "export KEY=value; ", "cd /run;", "python", "-u", "-m", "deepspeed.launcher.launch",
                          "--world_info=INFO", "--node_rank=%n", "--master_addr=10.0.0.1", "--master_port=29500",
                          "--enable_each_rank_log=None", "train.py", "--x", "'a b'"));
  EXPECT_EQ(command.environment.at("PDSH_RCMD_TYPE"), "ssh");
  EXPECT_EQ(command.end.back(), "pkill -TERM -f '[-]-world_info=INFO'");
}

TEST(RemoteCommands, PdshPassesOnHowRanksAreStarted) {
  RemoteRun run = two_hosts();
  run.request.program.interpreter.emplace_back("-m");
  run.request.program.passes_local_rank = false;
  run.request.bind_cores_to_rank = true;
  run.request.bind_core_list = "0-3";
  run.request.save_pid = true;
  run.request.enable_each_rank_log = "logs";
  run.launcher_pid = 77;
  const Words words = command_by("pdsh", run).arguments;
  EXPECT_THAT(Words(words.end() - 11, words.end() - 3),
              ElementsAre("--master_port=29500", "--module", "--no_local_rank", "--bind_cores_to_rank",
                          "--bind_core_list=0-3", "--save_pid", "77", "--enable_each_rank_log=logs"));
  run.request.program.interpreter.clear();
  EXPECT_THAT(command_by("pdsh", run).arguments, ::testing::Contains("--no_python"));
}

TEST(RemoteCommands, PdshLeavesNothingForAShellToExpand) {
  RemoteRun run = two_hosts();
  run.request.program.arguments = {"$(touch ran)", "it's"};
  const Words words = command_by("pdsh", run).arguments;
  EXPECT_THAT(Words(words.end() - 2, words.end()), ElementsAre("'$(touch ran)'", R"('it'\''s')"));
}

TEST(RemoteCommands, OpenMpi) {
  EXPECT_THAT(command_by("openmpi", two_hosts()).arguments,
              ElementsAre("mpirun", "-n", "4", "-hostfile", "/job/hostfile", "--mca", "btl", "^openib", "--mca",
                          "btl_tcp_if_include", "eth0", "-x", "KEY=value", "-x", "MASTER_ADDR=10.0.0.1", "-x",
                          "MASTER_PORT=29500", "python", "-u", "train.py", "--x", "a b"));
  RemoteRun other = two_hosts();
  other.request.launcher_args = "--mca btl_tcp_if_include eth1";
  EXPECT_THAT(command_by("openmpi", other).arguments, ::testing::Not(::testing::Contains("eth0")));
  other.request.include = "worker-0";
  EXPECT_EQ(refusal_by("openmpi", other), "the launcher openmpi cannot include or exclude machines");
}

TEST(RemoteCommands, Mpich) {
  RemoteRun run = two_hosts();
  run.rank_starter = {"python", "-u", "helper.py"};
  EXPECT_THAT(
      command_by("mpich", run).arguments,
      ElementsAre("mpirun", "-n", "4", "-ppn", "2", "-genv", "KEY=value", "-genv", "MASTER_ADDR", "10.0.0.1", "-genv",
                  "MASTER_PORT", "29500", "-genv", "WORLD_SIZE", "4", "-genv", "LOCAL_SIZE", "2", "-hosts",
                  "worker-0,worker-1", "python", "-u", "helper.py", "--launcher", "mpich", "train.py", "--x", "a b"));
  run.pool[1].slots.pop_back();
  EXPECT_THAT(refusal_by("mpich", run), HasSubstr("the same number of slots on every machine: worker-0 has 2"));
}

TEST(RemoteCommands, IntelMpiNamesEveryRank) {
  const Words words = command_by("impi", two_hosts()).arguments;
  EXPECT_THAT(Words(words.begin(), words.begin() + 6), ElementsAre("mpirun", "-ppn", "2", "-genv", "KEY", "value"));
  EXPECT_THAT(Words(words.end() - 14, words.end()),
              ElementsAre(":", "-n", "1", "-env", "RANK", "3", "-env", "LOCAL_RANK", "1", "python", "-u", "train.py",
                          "--x", "a b"));
}

TEST(RemoteCommands, Slurm) {
  RemoteRun run = two_hosts();
  EXPECT_THAT(command_by("slurm", run).arguments,
              ElementsAre("srun", "-n", "4", "--export=ALL,KEY=value,MASTER_ADDR=10.0.0.1,MASTER_PORT=29500", "python",
                          "-u", "train.py", "--x", "a b"));
  run.request.include = "worker-1";
  run.hosts.erase(run.hosts.begin());
  const Words words = command_by("slurm", run).arguments;
  EXPECT_THAT(Words(words.begin(), words.begin() + 7),
              ElementsAre("srun", "-n", "2", "--nodelist", "worker-1", "--nodes", "1"));
  run.hosts[0].slots = {1, 3};
  EXPECT_EQ(refusal_by("slurm", run), "Slurm cannot choose the slots [1, 3] of worker-1");
}

// srun splits --export at commas and keeps quotes (tests/slurm looks at what arrives).
TEST(RemoteCommands, WhatSrunCannotTakeOnItsCommandLineGoesByItsEnvironment) {
  RemoteRun run = two_hosts();
  run.exports = {{"KEY", "value"}, {"LIST", "a,b"}, {"WORDS", "a b"}};
  const RemoteCommand command = command_by("slurm", run);
  EXPECT_THAT(command.arguments, ::testing::Contains("--export=ALL,KEY=value,MASTER_ADDR=10.0.0.1,MASTER_PORT=29500"));
  EXPECT_EQ(command.environment, (Environment{{"LIST", "a,b"}, {"WORDS", "a b"}}));
}

TEST(RemoteCommands, SlurmOnHostsOfItsOwn) {
  RemoteRun run = two_hosts();
  run.hosts_are_slurms = true;
  run.request.master_addr.clear();
  run.request.master_port = 0;
  run.request.launcher_args = "--gres=gpu:2";
  const RemoteCommand command = command_by("slurm", run);
  EXPECT_THAT(command.arguments, ElementsAre("srun", "-n", "4", "--nodes", "2", "--ntasks-per-node", "2",
                                             "--gres=gpu:2", "--export=ALL", "python", "-u", "train.py", "--x", "a b"));
  EXPECT_EQ(command.environment, (Environment{{"KEY", "value"}}));
  run.rank_starter = {"tessera", "launch", "--slurm-task"};
  const Words started = command_by("slurm", run).arguments;
  EXPECT_THAT(Words(started.begin() + 9, started.end()),
              ElementsAre("tessera", "launch", "--slurm-task", "train.py", "--x", "a b"));
  run.hosts[1].slots = {0};
  EXPECT_THAT(command_by("slurm", run).arguments, ::testing::Not(::testing::Contains("--ntasks-per-node")));
  run.request.include = "worker-0@worker-1:0";
  EXPECT_THAT(refusal_by("slurm", run), HasSubstr("the same number of slots on every machine"));
}

TEST(RemoteCommands, Mvapich) {
  EXPECT_THAT(command_by("mvapich", two_hosts()).arguments,
              ElementsAre("mpirun", "-np", "4", "-ppn", "2", "--hostfile", "/job/hostfile", "-env", "KEY=value",
                          "python", "-u", "train.py", "--x", "a b"));
}

TEST(RemoteCommands, OnlyAValueThatAShellWouldReadDifferentlyIsQuoted) {
  EXPECT_EQ(double_quoted("64(x2)"), "\"64(x2)\"");
  EXPECT_EQ(double_quoted("/usr/lib:/a@b"), "/usr/lib:/a@b");
}

TEST(RemoteCommands, ALauncherThatIsNotInstalledIsNamed) {
  try {
    require_launcher_installed("mvapich");
    GTEST_SKIP() << "MVAPICH is installed here";
  } catch (const Error& error) {
    EXPECT_EQ(error.report().what, "--launcher mvapich needs the program mpiname, which is not installed");
  }
}

}  // namespace
}  // namespace tessera::launch::remote_commands_test

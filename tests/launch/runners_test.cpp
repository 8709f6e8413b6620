#include "tessera/launch/runners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tessera/base/error.h"
#include "tests/launch/started_tool.h"
#include "tests/support/temporary_folder.h"

namespace tessera::launch::runners_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Words = std::vector<std::string>;

class Runners : public ::testing::Test {
 protected:
  Runners() { std::ofstream(hostfile_) << "worker-0 slots=2\nworker-1 slots=2\n"; }

  LaunchRequest request() const {
    LaunchRequest made{.program = {.name = "true"}, .hostfile = hostfile_, .master_addr = "10.0.0.1"};
    return made;
  }

  static ErrorReport refusal_of(const LaunchRequest& request) {
    try {
      decide(request);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return error.report();
    }
    ADD_FAILURE() << "nothing was refused";
    return {};
  }

  const test::TemporaryFolder folder_;
  const std::string hostfile_ = (folder_.path() / "hosts").string();
};

TEST_F(Runners, AnUnknownLauncherIsAnErrorWithTheNearest) {
  LaunchRequest wrong = request();
  wrong.launcher = "pdhs";
  const ErrorReport report = refusal_of(wrong);
  EXPECT_EQ(report.what, "there is no launcher 'pdhs'");
  EXPECT_THAT(report.fix,
              HasSubstr("did you mean 'pdsh'? known: local, ssh, pdsh, openmpi, mpich, impi, slurm, mvapich"));
}

TEST_F(Runners, OneHostThatIsThisOneIsLocalAndOthersAreReachedBySsh) {
  EXPECT_EQ(decide({.program = {.name = "true"}}).launcher, "local");
  EXPECT_EQ(decide(request()).launcher, "ssh");
  std::ofstream(hostfile_) << "localhost slots=2\n";
  EXPECT_EQ(decide(request()).launcher, "local");
  LaunchRequest forced = request();
  forced.force_multi = true;
  EXPECT_EQ(decide(forced).launcher, "ssh");
}

TEST_F(Runners, OptionsThatDoNotFitAreRefusedByName) {
  LaunchRequest local = request();
  local.launcher = "local";
  EXPECT_THAT(refusal_of(local).what, HasSubstr("--launcher local starts ranks on this host alone, not on worker-1"));
  LaunchRequest own = request();
  own.no_ssh = true;
  EXPECT_THAT(refusal_of(own).what, HasSubstr("--no_ssh needs --node_rank"));
  own.node_rank = 1;
  own.master_addr.clear();
  EXPECT_THAT(refusal_of(own).what, HasSubstr("--no_ssh needs --master_addr"));
  LaunchRequest logs = request();
  logs.launcher = "slurm";
  logs.enable_each_rank_log = "logs";
  EXPECT_THAT(refusal_of(logs).what, HasSubstr("--enable_each_rank_log does not work with --launcher slurm"));
  LaunchRequest cores = request();
  cores.bind_core_list = "0-3";
  EXPECT_THAT(refusal_of(cores).what, HasSubstr("--bind_core_list only makes sense with --bind_cores_to_rank"));
  EXPECT_THAT(refusal_of({.exclude = "localhost:0"}).what, HasSubstr("--exclude needs a hostfile"));
}

TEST_F(Runners, APythonProgramRunsAsDeepSpeedRunsIt) {
  const RankProgram script = program_of({"train.py", "--x"}, {});
  const Words words = command_of(script, 3);
  EXPECT_THAT(Words(words.begin() + 1, words.end()), ElementsAre("-u", "train.py", "--local_rank=3", "--x"));
  EXPECT_THAT(words.front(), HasSubstr("/python3"));
  const Words module = command_of(program_of({"pack.train"}, {.module = true, .no_local_rank = true}), 3);
  EXPECT_THAT(Words(module.begin() + 1, module.end()), ElementsAre("-u", "-m", "pack.train"));
}

TEST_F(Runners, AnyOtherProgramRunsAsItIs) {
  EXPECT_THAT(command_of(program_of({"./train", "-x"}, {}), 3), ElementsAre("./train", "-x"));
  EXPECT_THAT(command_of(program_of({"train.py"}, {.no_python = true}), 3), ElementsAre("train.py"));
  EXPECT_THROW(program_of({"train.py"}, {.module = true, .no_python = true}), Error);
  EXPECT_THROW(program_of({}, {}), Error);
}

TEST_F(Runners, ADryRunOfAnotherLauncherIsItsCommand) {
  LaunchRequest slurm = request();
  slurm.launcher = "slurm";
  const std::string text = launch_text(decide(slurm));
  EXPECT_THAT(text, HasSubstr("srun -n 4 --export=ALL,"));
  EXPECT_THAT(text, HasSubstr("MASTER_ADDR=10.0.0.1,MASTER_PORT=29500 true\n"));
}

TEST_F(Runners, SlotsOfThisHostAreDevicesByTheirNumber) {
  StartedTool tool(
      {"launch", "--include", "localhost:2,3", "sh", "-c", "echo $RANK $WORLD_SIZE $CUDA_VISIBLE_DEVICES"});
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_THAT(tool.out(), HasSubstr("[rank 1] 1 2 2,3\n"));
}

TEST_F(Runners, ACommandOnEveryHostStartsThatHostsRanks) {
  StartedTool tool({"launch", "-H", hostfile_, "--no-ssh", "--node-rank", "1", "--master-addr", "10.0.0.1", "sh", "-c",
                    "echo $RANK $WORLD_SIZE $CROSS_RANK $MASTER_ADDR:$MASTER_PORT"});
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_THAT(tool.out(), HasSubstr("[rank 3] 3 4 1 10.0.0.1:29500\n"));
}

TEST_F(Runners, AFilePerRankAndAPidFileWhileItRuns) {
  const std::string logs = (folder_.path() / "logs").string();
  StartedTool tool({"launch", "--nproc", "2", "--enable_each_rank_log", logs, "--save_pid", "sh", "-c",
                    "echo rank $RANK; echo oops >&2; cat /tmp/$PPID.deepspeed"});
  const pid_t pid = tool.pid();
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(logs)) {
    std::ifstream file(entry.path());
    std::string text((std::istreambuf_iterator<char>(file)), {});
    const std::string name = entry.path().filename().string();
    const std::string rank = name.substr(name.size() - 5, 1);
    EXPECT_EQ(text, "rank " + rank + "\noops\n" + std::to_string(pid));
    ++files;
  }
  EXPECT_EQ(files, 2);
  EXPECT_FALSE(std::filesystem::exists("/tmp/" + std::to_string(pid) + ".deepspeed"));
}

TEST_F(Runners, AnotherLaunchersRanksEndByItsCommandAfterASignal) {
  const std::string folder = folder_.path().string();
  std::ofstream(folder_.path() / "pdsh") << "#!/bin/sh\necho \"$*\" >> " << folder << "/asked\n"
                                         << "case $* in *pkill*) exit 0;; esac\necho ready\nexec sleep 60\n";
  std::filesystem::permissions(folder_.path() / "pdsh", std::filesystem::perms::owner_all);
  StartedTool tool({"launch", "-H", hostfile_, "--launcher", "pdsh", "--master_addr", "10.0.0.1", "true"},
                   {{"PATH", folder + ":" + std::getenv("PATH")}});
  ASSERT_TRUE(tool.printed("ready")) << tool.err();
  kill(tool.pid(), SIGTERM);
  EXPECT_EQ(tool.wait(), 128 + SIGTERM);
  std::ifstream asked(folder_.path() / "asked");
  std::string first;
  std::string second;
  std::getline(asked, first);
  std::getline(asked, second);
  EXPECT_THAT(first, HasSubstr("-w worker-0,worker-1"));
  EXPECT_THAT(first, HasSubstr("--node_rank=%n --master_addr=10.0.0.1 --master_port=29500 --no_python --no_local_rank "
                               "--enable_each_rank_log=None true"));
  EXPECT_THAT(second, HasSubstr("pkill -TERM -f"));
}

}  // namespace
}  // namespace tessera::launch::runners_test

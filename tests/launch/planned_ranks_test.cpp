// Ranks that somebody else has planned: two of a larger run, as launch_tool runs them. The ranks are shell scripts.
#include "tessera/launch/planned_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/launch/started_tool.h"
#include "tests/support/temporary_folder.h"

namespace tessera::launch::planned_ranks_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(PlannedRanks, HaveACommandAndAnEnvironmentOfTheirOwnAndWriteToOurOutputThemselves) {
  StartedTool tool({"planned", "-", "echo $0 $PLACE $(readlink /proc/self/fd/0); echo oops >&2"});
  EXPECT_EQ(tool.wait(), 0);
  EXPECT_THAT(tool.out(), HasSubstr("rank4 place4 /dev/null\n"));
  EXPECT_THAT(tool.out(), HasSubstr("rank5 place5 /dev/null\n"));
  EXPECT_THAT(tool.out(), Not(HasSubstr("[rank")));
  EXPECT_EQ(tool.err(), "oops\noops\n");
}

TEST(PlannedRanks, WriteBothOutputsToAFileEach) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "4") << "an earlier run, which was longer than this one";
  const std::string other = (folder.path() / "4").string();
  StartedTool tool({"planned", folder.path(),
                    "echo $0; echo oops >&2; [ $0 = rank4 ] && exit 0; until grep -q oops " + other +
                        "; do sleep 0.05; done; exit 3"});
  EXPECT_EQ(tool.wait(), 3);
  EXPECT_EQ(tool.out(), "");
  EXPECT_EQ(text_of(folder.path() / "4"), "rank4\noops\n");
  EXPECT_EQ(text_of(folder.path() / "5"), "rank5\noops\n");
  EXPECT_THAT(tool.err(), HasSubstr("error: rank 5 exited with code 3"));
  EXPECT_THAT(tool.err(), HasSubstr("its output is in " + (folder.path() / "5").string()));
}

TEST(PlannedRanks, AreRefusedWhereTheirOutputCannotBeWritten) {
  StartedTool tool({"planned", "/proc/nowhere", "echo started"});
  EXPECT_EQ(tool.wait(), 2);
  EXPECT_THAT(tool.err(), HasSubstr("cannot write a rank's output: No such file or directory"));
  EXPECT_THAT(tool.err(), HasSubstr("/proc/nowhere/4"));
}

TEST(PlannedRanks, LeaveNothingBehindWhenTheLauncherIsKilled) {
  StartedTool tool({"planned", "-", "sleep 60 & echo pid=$$. child=$!.; wait"});
  ASSERT_TRUE(tool.printed("child=", 2));
  std::vector<pid_t> pids = tool.pids_after("pid=");
  for (const pid_t child : tool.pids_after("child=")) pids.push_back(child);
  ASSERT_EQ(pids.size(), 4u);
  kill(tool.pid(), SIGKILL);
  EXPECT_TRUE(all_gone(pids, seconds(10)));
}

// SIGUSR1 says that a scheduler's time is up: what the ranks make of it is handed on, also by another program's ranks.
TEST(PlannedRanks, LeaveWithTheCodeOfARequeueAfterItsSignal) {
  const std::vector<std::string> words = {"planned", "-",
                                          "trap 'kill $!; exit $CODE' USR1; sleep 60 & echo ready; wait"};
  for (const auto& [code, fails] : {std::pair{"75", false}, {"75", true}, {"0", false}, {"0", true}}) {
    std::map<std::string, std::string> variables{{"CODE", code}};
    if (fails) variables["SIGNAL_FAILS"] = "1";
    StartedTool tool(words, variables);
    ASSERT_TRUE(tool.printed("ready", 2));
    kill(tool.pid(), SIGUSR1);
    EXPECT_EQ(tool.wait(), std::stoi(code));
    EXPECT_THAT(tool.err(), Not(HasSubstr("error:")));
  }
  StartedTool deaf({"planned", "-", "echo ready; exec sleep 60"});
  ASSERT_TRUE(deaf.printed("ready", 2));
  kill(deaf.pid(), SIGUSR1);
  EXPECT_EQ(deaf.wait(), 128 + SIGUSR1);
}

// The job's end, after its warning.
TEST(PlannedRanks, HearAnotherSignalAfterThatOfARequeue) {
  StartedTool tool(
      {"planned", "-",
       "trap 'echo told' USR1; trap 'kill $!; exit 0' TERM; sleep 60 & echo ready; while true; do wait; done"});
  ASSERT_TRUE(tool.printed("ready", 2));
  kill(tool.pid(), SIGUSR1);
  ASSERT_TRUE(tool.printed("told", 2));
  kill(tool.pid(), SIGTERM);
  EXPECT_EQ(tool.wait(), 0);
}

// A rank that ends with 0 when it is asked to: whether that is success, the caller decides.
TEST(PlannedRanks, ThatEndWellAfterASignalAreASuccessOrNot) {
  const std::vector<std::string> words = {"planned", "-", "trap 'kill $!; exit 0' TERM; sleep 60 & echo ready; wait"};
  StartedTool lenient(words);
  ASSERT_TRUE(lenient.printed("ready", 2));
  kill(lenient.pid(), SIGTERM);
  EXPECT_EQ(lenient.wait(), 0);
  StartedTool strict(words, {{"SIGNAL_FAILS", "1"}});
  ASSERT_TRUE(strict.printed("ready", 2));
  kill(strict.pid(), SIGTERM);
  EXPECT_EQ(strict.wait(), 128 + SIGTERM);
}

}  // namespace
}  // namespace tessera::launch::planned_ranks_test

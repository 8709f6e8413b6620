// Runs that are started again when a rank fails. launch_tool runs them, as users do; the ranks are shell scripts.
#include "tessera/launch/restarts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "tests/launch/started_tool.h"

namespace tessera::launch::restarts_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

Words restarted_sh(int nproc, const Words& flags, const std::string& script) {
  Words words{"launch", "--nproc", std::to_string(nproc)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), {"sh", "-c", script});
  return words;
}

TEST(Restarts, ARankThatFailsIsStartedAgainWithAllOthersUntilItDoesNot) {
  // Rank 1 fails once rank 0 has said its line, which the end of the other would cut short.
  const std::string said = testing::TempDir() + "tessera-restarts-" + std::to_string(getpid()) + "-";
  StartedTool tool(restarted_sh(2, {"--max-restarts", "3"},
                                "said=" + said +
                                    "$TORCHELASTIC_RESTART_COUNT; "
                                    "echo life=$TORCHELASTIC_RESTART_COUNT.$RANK of $TORCHELASTIC_MAX_RESTARTS; "
                                    "[ $RANK = 0 ] && { touch $said; exit 0; }; "
                                    "while [ ! -e $said ]; do sleep 0.01; done; "
                                    "rm $said; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 3"));
  EXPECT_EQ(tool.wait(), 0);
  for (const char* life : {"0.0", "0.1", "1.0", "1.1", "2.0", "2.1"}) {
    EXPECT_THAT(tool.out(), HasSubstr(std::string("life=") + life + " of 3\n"));
  }
  EXPECT_THAT(tool.err(), HasSubstr("rank 1 exited with code 3"));
  EXPECT_THAT(tool.err(), HasSubstr("restart 2 of 3\n"));
  EXPECT_THAT(tool.err(), Not(HasSubstr("restart 3")));
}

TEST(Restarts, TheCodeIsThatOfTheLastLifeWhereAllHaveFailed) {
  StartedTool tool(restarted_sh(1, {"--max-restarts", "1"}, "exit $((4 + TORCHELASTIC_RESTART_COUNT))"));
  EXPECT_EQ(tool.wait(), 5);
  EXPECT_THAT(tool.err(), HasSubstr("not started again: that was restart 1 of 1\n"));
}

TEST(Restarts, WithoutTheFlagNothingIsStartedAgainAndNoRankIsToldOfLives) {
  StartedTool tool(restarted_sh(1, {}, "echo life=${TORCHELASTIC_RESTART_COUNT:-none}; exit 3"));
  EXPECT_EQ(tool.wait(), 3);
  EXPECT_THAT(tool.out(), HasSubstr("life=none\n"));
  EXPECT_THAT(tool.err(), Not(HasSubstr("restart")));
  EXPECT_THAT(tool.err(), Not(HasSubstr("started again")));
}

TEST(Restarts, ExitCodeTwoIsNotStartedAgainSinceSomebodyHasToPutSomethingRight) {
  StartedTool tool(restarted_sh(1, {"--max-restarts", "5"}, "echo life; exit 2"));
  EXPECT_EQ(tool.wait(), 2);
  EXPECT_THAT(tool.err(), HasSubstr("not started again: exit code 2"));
  EXPECT_FALSE(tool.printed("life", 2, milliseconds(0)));
}

TEST(Restarts, ACodeThatAsksASchedulerForAnotherLifeIsHandedOn) {
  StartedTool tool(restarted_sh(2, {"--max-restarts", "5"}, "echo life; exit 75"));
  EXPECT_EQ(tool.wait(), 75);
  EXPECT_THAT(tool.err(), HasSubstr("not started again: exit code 75"));
  EXPECT_FALSE(tool.printed("life", 3, milliseconds(0)));
}

TEST(Restarts, ASignalToTheLauncherEndsTheRunForGood) {
  StartedTool tool(restarted_sh(2, {"--max-restarts", "5"}, "echo pid=$$.; exec sleep 60"));
  ASSERT_TRUE(tool.printed("pid=", 2));
  const auto pids = tool.pids_after("pid=");
  kill(tool.pid(), SIGTERM);
  EXPECT_EQ(tool.wait(), 128 + SIGTERM);
  EXPECT_TRUE(all_gone(pids, seconds(5)));
  EXPECT_THAT(tool.err(), Not(HasSubstr("restart")));
}

TEST(Restarts, EachLifeMeetsOnAPortThatIsFree) {
  StartedTool tool(restarted_sh(2, {"--max-restarts", "1"},
                                "echo port=$MASTER_PORT.; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3"));
  EXPECT_EQ(tool.wait(), 0);
  for (const pid_t port : tool.pids_after("port=")) EXPECT_GT(port, 1023);
}

constexpr const char* kKilledOnThree =
    "echo world=$WORLD_SIZE.$RANK.$TORCHELASTIC_RESTART_COUNT; "
    "if [ $WORLD_SIZE = 3 ]; then [ $RANK = 1 ] && kill -9 $$; exec sleep 60; fi";

TEST(Restarts, ARankThatWasKilledIsGivenUpWhereFewerMayRun) {
  StartedTool tool(restarted_sh(3, {"--max-restarts", "2", "--min-nproc", "2"}, kKilledOnThree));
  EXPECT_EQ(tool.wait(), 0);
  EXPECT_THAT(tool.err(), HasSubstr("restart 1 of 2, on 2 ranks instead of 3\n"));
  EXPECT_THAT(tool.out(), HasSubstr("world=2.1.1\n"));
  EXPECT_THAT(tool.out(), Not(HasSubstr("world=2.2")));
}

TEST(Restarts, ARankThatWasKilledIsStartedAgainWhereNoFewerMayRun) {
  for (const Words& flags : {Words{"--max-restarts", "1"}, Words{"--max-restarts", "1", "--min-nproc", "3"}}) {
    StartedTool tool(restarted_sh(3, flags, kKilledOnThree));
    EXPECT_EQ(tool.wait(), 128 + SIGKILL);
    EXPECT_THAT(tool.out(), HasSubstr("world=3.1.1\n"));
    EXPECT_THAT(tool.err(), Not(HasSubstr("instead of")));
  }
}

TEST(Restarts, ARankThatFailedByItselfIsStartedAgainAlsoWhereFewerMayRun) {
  StartedTool tool(restarted_sh(2, {"--max-restarts", "1", "--min-nproc", "1"},
                                "echo world=$WORLD_SIZE.; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3"));
  EXPECT_EQ(tool.wait(), 0);
  EXPECT_THAT(tool.out(), Not(HasSubstr("world=1.")));
}

int ranks_on(const std::vector<HostSlots>& hosts, const std::string& name) {
  for (const HostSlots& host : hosts) {
    if (host.host == name) return static_cast<int>(host.slots.size());
  }
  return 0;
}

TEST(Restarts, TheSlotsOfAFailedHostAreGivenUpFirstAndThenTheLast) {
  const std::vector<HostSlots> hosts = {{"a", {0, 1}}, {"b", {4, 5}}, {"c", {0, 1}}};
  EXPECT_EQ(ranks_on(hosts_left(hosts, 1, 5), "b"), 1);
  const auto without_a = hosts_left(hosts, 0, 4);
  ASSERT_EQ(without_a.size(), 2u);
  EXPECT_EQ(without_a.front().host, "b");
  const auto one_more = hosts_left(hosts, 0, 3);
  EXPECT_EQ(ranks_on(one_more, "b"), 2);
  EXPECT_EQ(ranks_on(one_more, "c"), 1);
  EXPECT_EQ(one_more.back().slots, std::vector<int>{0});
}

TEST(Restarts, FlagsThatDoNotFitAreRefusedBeforeAnythingStarts) {
  const std::map<std::string, Words> refused = {
      {"--min-nproc is for runs that are started again", {"--min-nproc", "1"}},
      {"--min-nproc 3 is more than the 2 ranks", {"--max-restarts", "1", "--min-nproc", "3"}},
      {"--max-restarts", {"--max-restarts", "-1"}},
      {"--min-nproc", {"--max-restarts", "1", "--min-nproc", "0"}}};
  for (const auto& [words, flags] : refused) {
    StartedTool tool(restarted_sh(2, flags, "echo started"));
    EXPECT_EQ(tool.wait(), 2) << words;
    EXPECT_THAT(tool.out() + tool.err(), HasSubstr(words));
    EXPECT_THAT(tool.out(), Not(HasSubstr("started\n"))) << words;
  }
}

}  // namespace
}  // namespace tessera::launch::restarts_test

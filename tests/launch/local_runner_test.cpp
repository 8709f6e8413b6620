// The launcher as its users see it: launch_tool runs it as a process of its own, the ranks are shell scripts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <pty.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "tessera/base/deadline.h"
#include "tests/launch/started_tool.h"
#include "tests/support/built_places.h"

namespace tessera::launch::local_runner_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using Words = std::vector<std::string>;

Words launch_sh(int nproc, const std::string& script) {
  return {"launch", "--nproc", std::to_string(nproc), "sh", "-c", script};
}

Words tuned_sh(int nproc, const std::string& script) { return {"tuned", std::to_string(nproc), "sh", "-c", script}; }

TEST(LocalRunner, EachRankFindsItsPlaceInItsEnvironment) {
  StartedTool tool(launch_sh(2, "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $LOCAL_SIZE $MASTER_ADDR"));
  EXPECT_EQ(tool.wait(), 0);
  EXPECT_THAT(tool.out(), HasSubstr("[rank 0] 0 0 2 2 2 127.0.0.1\n"));
  EXPECT_THAT(tool.out(), HasSubstr("[rank 1] 1 1 2 2 2 127.0.0.1\n"));
}

TEST(LocalRunner, AllRanksGetTheSamePortThatWasPicked) {
  StartedTool tool(launch_sh(2, "echo port=$MASTER_PORT."));
  EXPECT_EQ(tool.wait(), 0);
  const auto ports = tool.pids_after("port=");
  ASSERT_EQ(ports.size(), 2u);
  EXPECT_EQ(ports[0], ports[1]);
  EXPECT_GT(ports[0], 1023);
}

TEST(LocalRunner, LinesOfAllRanksStayWholeAndGoWhereTheyWereWritten) {
  StartedTool tool(
      launch_sh(2, "for i in 1 2 3; do printf 'a%s' $i; sleep 0.05; echo z; done; echo oops >&2; printf end"));
  EXPECT_EQ(tool.wait(), 0);
  for (const char* rank : {"[rank 0] ", "[rank 1] "}) {
    for (const char* line : {"a1z\n", "a2z\n", "a3z\n", "end\n"})
      EXPECT_THAT(tool.out(), HasSubstr(std::string(rank) + line));
    EXPECT_THAT(tool.err(), HasSubstr(std::string(rank) + "oops\n"));
  }
}

TEST(LocalRunner, NothingIsLostOfMuchOutput) {
  StartedTool tool(launch_sh(2, "seq 1 100000"));
  EXPECT_EQ(tool.wait(), 0);
  // Each rank: 488,895 digits and 100,000 line ends (9*1 + 90*2 + 900*3 + 9000*4 + 90000*5 + 6), and 9 more a prefix.
  EXPECT_EQ(tool.out().size(), 2u * (488895 + 100000 + 9 * 100000));
}

TEST(LocalRunner, RankZeroPassesThroughPlainWhileOthersArePrefixed) {
  StartedTool tool(
      {"plain", "2", "sh", "-c", "if [ $RANK = 0 ]; then printf '1%%\\r2%%\\r3%%'; else sleep 0.5; echo x; fi"});
  EXPECT_EQ(tool.wait(), 0);
  EXPECT_EQ(tool.out(), "1%\r2%\r3%\n[rank 1] x\n");
}

TEST(LocalRunner, OnlyRankZeroReadsStandardInput) {
  StartedTool tool(launch_sh(2, "readlink /proc/self/fd/0; cat"));
  EXPECT_EQ(tool.wait(), 0);
  EXPECT_THAT(tool.out(), HasSubstr("[rank 1] /dev/null\n"));
}

TEST(LocalRunner, OptionsAfterTheProgramBelongToIt) {
  StartedTool tool({"launch", "--nproc", "1", "echo", "--nproc", "5", "--", "--master-port=1"});
  EXPECT_EQ(tool.wait(), 0);
  EXPECT_EQ(tool.out(), "[rank 0] --nproc 5 -- --master-port=1\n");
  StartedTool marked({"launch", "--nproc", "1", "--", "printf", "%s\\n", "--nproc"});
  EXPECT_EQ(marked.wait(), 0);
  EXPECT_EQ(marked.out(), "[rank 0] --nproc\n");
}

TEST(LocalRunner, AMisspeltOptionIsNotTakenForTheProgram) {
  StartedTool tool({"launch", "--nprocs", "2", "echo"});
  EXPECT_EQ(tool.wait(), 2);
  EXPECT_THAT(tool.err(), HasSubstr("did you mean '--nproc'?"));
}

TEST(LocalRunner, AProgramThatIsNotThereIsRefusedBeforeAnythingStarts) {
  StartedTool tool({"launch", "--nproc", "2", "no-such-program"});
  EXPECT_EQ(tool.wait(), 2);
  EXPECT_THAT(tool.err(), StartsWith("error: program 'no-such-program' not found"));
  EXPECT_EQ(tool.out(), "");
}

TEST(LocalRunner, AFileThatMayNotBeExecutedIsRefused) {
  StartedTool tool({"launch", "/etc/passwd"});
  EXPECT_EQ(tool.wait(), 2);
  EXPECT_THAT(tool.err(), HasSubstr("Permission denied"));
}

TEST(LocalRunner, RefusesLessThanOneRank) {
  StartedTool tool({"launch", "--nproc", "0", "true"});
  EXPECT_EQ(tool.wait(), 2);
  EXPECT_THAT(tool.err(), HasSubstr("--nproc is 0"));
}

TEST(LocalRunner, SaysThatThePortIsInUseBeforeAnythingStarts) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(server, 1), 0);
  ASSERT_EQ(getsockname(server, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  StartedTool tool({"launch", "--nproc", "2", "--master-port", port, "echo", "started"});
  EXPECT_EQ(tool.wait(), 2);
  EXPECT_THAT(tool.err(), HasSubstr("port " + port + " cannot be used: Address already in use"));
  EXPECT_EQ(tool.out(), "");
  close(server);
}

TEST(LocalRunner, ExitsWithTheCodeOfTheRankThatFailedFirst) {
  StartedTool tool(launch_sh(3, "[ $RANK = 1 ] && { echo last words; exit 7; }; sleep 60"));
  EXPECT_EQ(tool.wait(), 7);
  EXPECT_THAT(tool.err(), HasSubstr("error: rank 1 exited with code 7"));
  EXPECT_THAT(tool.err(), HasSubstr("    last words\n"));
}

TEST(LocalRunner, RanksThatHadEndedWellWhenAnotherFailedAreNamed) {
  StartedTool tool(launch_sh(3, "[ $RANK = 2 ] && exit 0; [ $RANK = 0 ] && exec sleep 60; sleep 0.7; exit 3"));
  EXPECT_EQ(tool.wait(), 3);
  EXPECT_THAT(tool.err(), HasSubstr("  before: rank 2 had ended well, with code 0\n"));
}

TEST(LocalRunner, ARankThatEndsWellStopsNobody) {
  StartedTool tool(launch_sh(2, "[ $RANK = 0 ] && exit 0; sleep 0.7; echo done"));
  EXPECT_EQ(tool.wait(), 0);
  EXPECT_EQ(tool.out(), "[rank 1] done\n");
}

TEST(LocalRunner, WhenARankIsKilledTheOthersAreGoneWithinFiveSecondsAndTheReportNamesIt) {
  StartedTool tool(launch_sh(3,
                             "echo pid=$$; for i in 1 2 3; do echo step $i of $RANK; done; "
                             "[ $RANK = 2 ] && { sleep 0.8; kill -9 $$; }; exec sleep 60"));
  ASSERT_TRUE(tool.printed("step 3", 3));
  EXPECT_EQ(tool.wait(seconds(8)), 128 + SIGKILL);
  EXPECT_TRUE(all_gone(tool.pids_after("pid="), milliseconds(0)));
  EXPECT_THAT(
      tool.err(),
      HasSubstr("error: rank 2 was killed by SIGKILL, sent by the system when memory runs out, by a scheduler or "
                "by a person: resident "));
  EXPECT_THAT(tool.err(), HasSubstr("    step 1 of 2\n    step 2 of 2\n    step 3 of 2\n"));
}

TEST(LocalRunner, ARankThatFailsInConsequenceIsNotBlamed) {
  // Rank 0 waits for rank 1 as a peer does: it fails as soon as rank 1's end of the pipe is closed.
  char folder[] = "/tmp/launch_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string pipe = std::string(folder) + "/pipe";
  StartedTool tool(launch_sh(2, "mkfifo " + pipe + " 2>/dev/null; if [ $RANK = 0 ]; then cat " + pipe +
                                    "; echo connection closed by peer; exit 1; else exec 3>" + pipe +
                                    "; sleep 0.3; kill -SEGV $$; fi"));
  EXPECT_EQ(tool.wait(), 128 + SIGSEGV);
  EXPECT_THAT(tool.err(), HasSubstr("error: rank 1 was killed by SIGSEGV"));
  unlink(pipe.c_str());
  rmdir(folder);
}

TEST(LocalRunner, ARankThatIgnoresSigtermIsKilledWhenTheGraceIsOver) {
  StartedTool tool(tuned_sh(2,
                            "echo pid=$$; [ $RANK = 0 ] && { sleep 0.3; exit 4; }; "
                            "trap '' TERM; while true; do sleep 1; done"),
                   {{"GRACE_MS", "300"}});
  EXPECT_EQ(tool.wait(), 4);
  EXPECT_TRUE(all_gone(tool.pids_after("pid="), milliseconds(0)));
  EXPECT_THAT(tool.err(), HasSubstr("rank 1 did not exit when asked to and had to be killed"));
}

TEST(LocalRunner, OtherRanksMayCleanUpWithinTheGrace) {
  StartedTool tool(launch_sh(2,
                             "[ $RANK = 0 ] && { sleep 0.5; exit 4; }; trap 'echo cleaned; exit 0' TERM; "
                             "while true; do sleep 0.1; done"));
  EXPECT_EQ(tool.wait(), 4);
  EXPECT_THAT(tool.out(), HasSubstr("[rank 1] cleaned\n"));
}

TEST(LocalRunner, WhatARankLeftRunningEndsWithIt) {
  StartedTool tool(launch_sh(2, "sleep 60 & echo pid=$!; setsid sleep 60 & echo pid=$!; sleep 0.2"));
  EXPECT_EQ(tool.wait(), 0);
  EXPECT_EQ(tool.pids_after("pid=").size(), 4u);
  EXPECT_TRUE(all_gone(tool.pids_after("pid="), milliseconds(0)));
}

TEST(LocalRunner, NoRankAndNoChildOfItOutlivesAKilledLauncher) {
  StartedTool tool(
      launch_sh(2, "echo pid=$$; sleep 60 & echo pid=$!; sh -c 'echo pid=$$; trap \"\" TERM HUP; sleep 60; :'"));
  ASSERT_TRUE(tool.printed("pid=", 6));
  kill(tool.pid(), SIGKILL);
  EXPECT_TRUE(all_gone(tool.pids_after("pid="), seconds(2)));
}

TEST(LocalRunner, RanksEndWithAKilledLauncherAlsoWhenItsGuardIsGone) {
  StartedTool tool(launch_sh(2, "echo pid=$$; exec sleep 60"));
  ASSERT_TRUE(tool.printed("pid=", 2));
  const auto ranks = tool.pids_after("pid=");
  pid_t guard = 0;
  const std::string of_tool = std::to_string(tool.pid());
  std::ifstream children("/proc/" + of_tool + "/task/" + of_tool + "/children");
  for (pid_t child = 0; children >> child;) {
    if (child != ranks[0] && child != ranks[1]) guard = child;
  }
  ASSERT_GT(guard, 0);
  kill(guard, SIGKILL);
  kill(tool.pid(), SIGKILL);
  EXPECT_TRUE(all_gone(ranks, seconds(2)));
}

TEST(LocalRunner, CtrlCIsForwardedOnceAndTheRanksMaySave) {
  StartedTool tool(launch_sh(2,
                             "trap 'echo saving; sleep 0.3; echo saved; exit 0' INT; echo ready; "
                             "while true; do sleep 0.1; done"));
  ASSERT_TRUE(tool.printed("ready", 2));
  kill(tool.pid(), SIGINT);
  EXPECT_EQ(tool.wait(), 0);
  EXPECT_THAT(tool.out(), HasSubstr("[rank 0] saved\n"));
  EXPECT_THAT(tool.out(), HasSubstr("[rank 1] saved\n"));
}

TEST(LocalRunner, RanksThatCtrlCEndsAreNoFailureAndTheCodeSaysCtrlC) {
  StartedTool tool(launch_sh(2, "echo ready; exec sleep 60"));
  ASSERT_TRUE(tool.printed("ready", 2));
  kill(tool.pid(), SIGINT);
  EXPECT_EQ(tool.wait(), 130);
  EXPECT_THAT(tool.err(), Not(HasSubstr("error:")));
}

TEST(LocalRunner, SigtermIsForwardedToo) {
  StartedTool tool(launch_sh(2, "echo ready; exec sleep 60"));
  ASSERT_TRUE(tool.printed("ready", 2));
  kill(tool.pid(), SIGTERM);
  EXPECT_EQ(tool.wait(), 143);
}

TEST(LocalRunner, ASecondCtrlCStopsAtOnce) {
  StartedTool tool(launch_sh(2, "trap 'echo got it' INT; echo ready; while true; do sleep 0.1; done"));
  ASSERT_TRUE(tool.printed("ready", 2));
  kill(tool.pid(), SIGINT);
  ASSERT_TRUE(tool.printed("got it", 2));
  kill(tool.pid(), SIGINT);
  EXPECT_EQ(tool.wait(seconds(10)), 130);
}

TEST(LocalRunner, RanksThatDoNotEndInTimeAfterASignalAreKilled) {
  StartedTool tool(tuned_sh(2, "trap '' TERM; echo ready; while true; do sleep 0.1; done"), {{"ENDING_MS", "300"}});
  ASSERT_TRUE(tool.printed("ready", 2));
  kill(tool.pid(), SIGTERM);
  EXPECT_EQ(tool.wait(), 143);
  EXPECT_THAT(tool.err(), HasSubstr("ranks 0, 1 did not exit when asked to and had to be killed"));
}

TEST(LocalRunner, ACrashWhileEndingDoesNotLetTheOthersWaitInVain) {
  StartedTool tool(launch_sh(2,
                             "if [ $RANK = 0 ]; then trap 'kill -BUS $$' INT; else trap '' INT; fi; echo ready; "
                             "while true; do sleep 0.1; done"));
  ASSERT_TRUE(tool.printed("ready", 2));
  kill(tool.pid(), SIGINT);
  EXPECT_EQ(tool.wait(seconds(15)), 128 + SIGBUS);
}

TEST(LocalRunner, StopsWhenNobodyReadsItsOutputAnyMore) {
  StartedTool tool(launch_sh(2, "echo pid=$$; while true; do echo tick; sleep 0.05; done"));
  ASSERT_TRUE(tool.printed("tick", 2));
  const auto pids = tool.pids_after("pid=");
  tool.close_output();
  EXPECT_EQ(tool.wait(seconds(15)), 128 + SIGPIPE);
  EXPECT_TRUE(all_gone(pids, milliseconds(0)));
}

TEST(LocalRunner, AReaderThatDoesNotReadKeepsNoRankFromBeingStopped) {
  char path[] = "/tmp/launch_test_XXXXXX";
  const int file = mkstemp(path);
  ASSERT_GE(file, 0);
  // Rank 0 fills every buffer on the way, since nothing is read here before it has gone.
  StartedTool tool(tuned_sh(2, "[ $RANK = 0 ] && { echo $$ >" + std::string(path) + "; exec yes; }; sleep 0.7; exit 9"),
                   {{"GRACE_MS", "500"}});
  std::this_thread::sleep_for(milliseconds(600));
  char digits[16] = {};
  ASSERT_GT(read(file, digits, sizeof digits - 1), 0);
  EXPECT_TRUE(all_gone({std::atoi(digits)}, seconds(8)));
  EXPECT_EQ(tool.wait(), 9);
  close(file);
  unlink(path);
}

// Runs launch_tool on a terminal of its own, types `typed` once "ready" has come from both ranks, and returns its exit
// code and all that the terminal showed.
std::pair<int, std::string> on_a_terminal(const Words& words, const std::string& typed) {
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    Words texts = words;
    texts.insert(texts.begin(), test::launch_tool());
    std::vector<char*> pointers;
    for (std::string& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    execv(pointers.front(), pointers.data());
    _exit(127);
  }
  const Deadline deadline(seconds(20), "launch_tool on a terminal");
  std::string shown;
  bool open = true;
  bool to_type = !typed.empty();
  while (open && !deadline.expired()) {
    pollfd readable{.fd = terminal, .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, 100) > 0) {
      char bytes[4096];
      const ssize_t count = read(terminal, bytes, sizeof bytes);
      open = count > 0;
      if (open) shown.append(bytes, static_cast<size_t>(count));
    }
    if (to_type && shown.find("ready 0") != std::string::npos && shown.find("ready 1") != std::string::npos) {
      to_type = write(terminal, typed.data(), typed.size()) < 0;
    }
  }
  if (open) kill(pid, SIGKILL);
  int status = 0;
  waitpid(pid, &status, 0);
  close(terminal);
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), shown};
}

TEST(LocalRunner, APlainRankZeroHasTheTerminalItselfAndMayReadIt) {
  const auto [code, shown] = on_a_terminal(
      {"plain", "2", "sh", "-c", "[ -t 1 ] && echo terminal $RANK; echo ready $RANK; read line; echo got:$line $RANK"},
      "hello\n");
  EXPECT_EQ(code, 0);
  EXPECT_THAT(shown, HasSubstr("terminal 0\r\n"));
  EXPECT_THAT(shown, Not(HasSubstr("terminal 1")));
  EXPECT_THAT(shown, HasSubstr("got:hello 0\r\n"));
  EXPECT_THAT(shown, HasSubstr("[rank 1] got: 1\r\n"));
}

TEST(LocalRunner, ACtrlCOnTheTerminalReachesEachRankOnce) {
  const auto [code, shown] = on_a_terminal({"launch", "--nproc", "2", "sh", "-c",
                                            "n=0; trap 'n=$((n+1))' INT; echo ready $RANK; while [ $n = 0 ]; do sleep "
                                            "0.1; done; sleep 0.5; echo count=$n $RANK"},
                                           "\x03");
  EXPECT_EQ(code, 0);
  EXPECT_THAT(shown, HasSubstr("count=1 0"));
  EXPECT_THAT(shown, HasSubstr("count=1 1"));
}

}  // namespace
}  // namespace tessera::launch::local_runner_test

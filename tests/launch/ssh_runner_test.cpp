// Two "hosts": a script named ssh runs the command here, behind a pipe of its own as behind a connection, in a session
// of its own as on another host. The ranks are shell scripts.
#include "tessera/launch/ssh_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/launch/started_tool.h"
#include "tests/support/built_places.h"
#include "tests/support/temporary_folder.h"

namespace tessera::launch::ssh_runner_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

class SshRunner : public ::testing::Test {
 protected:
  SshRunner() {
    std::filesystem::create_symlink(test::source_folder() + "/tests/support/fake_ssh", at("ssh"));
    write("hostname", "#!/bin/sh\necho 10.1.2.3 fe80::1\n");
    write("hosts", "a slots=2\nb slots=1\n");
  }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(at(name)) << text;
    std::filesystem::permissions(at(name), std::filesystem::perms::owner_all);
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string text_of(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(at(name)).rdbuf();
    return text.str();
  }

  std::map<std::string, std::string> environment() const {
    return {{"FAKE", folder_.path().string()},
            {"HOME", folder_.path().string()},
            {"PATH", folder_.path().string() + ":" + std::getenv("PATH")}};
  }

  Words launch_sh(const std::string& script) const {
    return {"launch", "--hostfile", at("hosts"), "--launcher", "ssh", "--master_addr", "127.0.0.1", "sh", "-c", script};
  }

  // A rank that says where it is, and ends with "TERM" in a file of its own when it is asked to.
  std::string patient() const {
    return "trap 'echo TERM > " + at("ended") + ".$RANK; exit 0' TERM; echo pid=$$; while true; do sleep 0.1; done";
  }
  bool all_were_asked_to_end() const {
    return text_of("ended.0") == "TERM\n" && text_of("ended.1") == "TERM\n" && text_of("ended.2") == "TERM\n";
  }

  const test::TemporaryFolder folder_;
};

TEST_F(SshRunner, EachRankFindsItsPlaceAndItsLinesNameItsHost) {
  StartedTool tool(
      launch_sh("echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $CROSS_RANK $CUDA_VISIBLE_DEVICES $ON_HOST; "
                "echo oops >&2"),
      environment());
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_THAT(tool.out(), AllOf(HasSubstr("[a rank 0] 0 0 3 2 0 0,1 a\n"), HasSubstr("[a rank 1] 1 1 3 2 0 0,1 a\n"),
                                HasSubstr("[b rank 2] 2 0 3 1 1 0 b\n")));
  EXPECT_THAT(tool.err(), HasSubstr("[b rank 2] oops\n"));
}

TEST_F(SshRunner, TheAddressOfTheFirstHostIsAskedOfIt) {
  StartedTool tool({"launch", "-H", at("hosts"), "sh", "-c", "echo at=$MASTER_ADDR:$MASTER_PORT"}, environment());
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_THAT(tool.out(), HasSubstr("[b rank 2] at=10.1.2.3:29500\n"));
  EXPECT_THAT(text_of("asked"), HasSubstr("a: hostname -I\n"));
}

TEST_F(SshRunner, FiltersLeaveHostsOut) {
  Words words = launch_sh("echo $RANK of $WORLD_SIZE on $CUDA_VISIBLE_DEVICES");
  words.insert(words.begin() + 1, {"--include", "a:1"});
  StartedTool tool(words, environment());
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_EQ(tool.out(), "[a rank 0] 0 of 1 on 1\n");
}

TEST_F(SshRunner, VariablesOfTheEnvironmentFileReachEveryHost) {
  write(".deepspeed_env", "COLOUR = it's red\n");
  StartedTool tool(launch_sh("echo colour=$COLOUR."), environment());
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_THAT(tool.out(),
              AllOf(HasSubstr("[a rank 1] colour=it's red.\n"), HasSubstr("[b rank 2] colour=it's red.\n")));
}

TEST_F(SshRunner, RanksShareASecretThatIsOnNoCommandLine) {
  StartedTool tool(launch_sh("echo secret=$TESSERA_SECRET."), environment());
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  const size_t at_first = tool.out().find("secret=") + 7;
  const std::string secret = tool.out().substr(at_first, 64);
  EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos) << secret;
  EXPECT_THAT(tool.out(), AllOf(HasSubstr("[a rank 0] secret=" + secret + ".\n"),
                                HasSubstr("[b rank 2] secret=" + secret + ".\n")));
  EXPECT_THAT(text_of("asked"), AllOf(HasSubstr("launch --node-part"), Not(HasSubstr(secret)), Not(HasSubstr("echo"))));
}

TEST_F(SshRunner, WhenARankFailsAllHostsAreStoppedAndTheCodeIsIts) {
  StartedTool tool(launch_sh("[ $RANK = 2 ] && { echo pid=$$; until [ -e " + at("go") +
                             " ]; do sleep 0.05; done; "
                             "echo last words; exit 7; }; " +
                             patient()),
                   environment());
  ASSERT_TRUE(tool.printed("pid=", 3)) << tool.err();
  const auto pids = tool.pids_after("pid=");
  write("go", "");
  EXPECT_EQ(tool.wait(), 7);
  EXPECT_TRUE(all_gone(pids, seconds(0)));
  EXPECT_EQ(text_of("ended.0") + text_of("ended.1"), "TERM\nTERM\n");
  EXPECT_THAT(tool.err(), AllOf(HasSubstr("error: rank 2 exited with code 7"), HasSubstr("    last words\n"),
                                HasSubstr("error: rank 2 on b exited with code 7"), Not(HasSubstr("rank 0 exited"))));
}

TEST_F(SshRunner, RanksEndWhereTheConnectionIsLost) {
  StartedTool tool(launch_sh(patient()), environment());
  ASSERT_TRUE(tool.printed("pid=", 3)) << tool.err();
  const auto pids = tool.pids_after("pid=");
  kill(std::atoi(text_of("connection.b").c_str()), SIGKILL);
  EXPECT_GT(tool.wait(), 0);
  EXPECT_TRUE(all_gone(pids, seconds(0)));
  EXPECT_TRUE(all_were_asked_to_end());
  EXPECT_THAT(tool.err(), HasSubstr("the launcher that started these ranks is gone; stopping them"));
}

TEST_F(SshRunner, RanksEndWhereNothingComesOverTheConnectionAnyMore) {
  auto variables = environment();
  variables["TESSERA_TIMEOUT"] = "2";
  StartedTool tool(launch_sh(patient()), variables);
  ASSERT_TRUE(tool.printed("pid=", 3)) << tool.err();
  const auto pids = tool.pids_after("pid=");
  const pid_t connection = std::atoi(text_of("connection.b").c_str());
  kill(connection, SIGSTOP);
  EXPECT_GT(tool.wait(), 0);
  kill(connection, SIGKILL);
  EXPECT_TRUE(all_gone(pids, seconds(0)));
  EXPECT_TRUE(all_were_asked_to_end());
  EXPECT_THAT(tool.err(),
              HasSubstr("the launcher that started these ranks has not been heard of for 2 s; stopping them"));
}

TEST_F(SshRunner, AHostOfWhichNothingComesIsNamedAndTheOthersAreStopped) {
  auto variables = environment();
  variables["TESSERA_TIMEOUT"] = "2";
  StartedTool tool(launch_sh("echo host=$PPID.$ON_HOST.; " + patient()), variables);
  ASSERT_TRUE(tool.printed("pid=", 3)) << tool.err();
  ASSERT_TRUE(tool.printed(".b.")) << tool.out();
  const size_t at_host = tool.out().rfind("host=", tool.out().find(".b."));
  const pid_t launcher_of_b = std::atoi(tool.out().c_str() + at_host + 5);
  kill(launcher_of_b, SIGSTOP);
  EXPECT_EQ(tool.wait(), 255);
  kill(launcher_of_b, SIGCONT);
  EXPECT_THAT(tool.err(), HasSubstr("error: host b has not been heard of for 2 s"));
  EXPECT_TRUE(all_gone(tool.pids_after("pid="), seconds(15)));  // b's launcher finds its line closed once it goes on
}

TEST_F(SshRunner, RanksEndWhereTheLauncherIsKilled) {
  StartedTool tool(launch_sh(patient()), environment());
  ASSERT_TRUE(tool.printed("pid=", 3)) << tool.err();
  const auto pids = tool.pids_after("pid=");
  kill(tool.pid(), SIGKILL);
  EXPECT_TRUE(all_gone(pids, seconds(15)));
  EXPECT_TRUE(all_were_asked_to_end());  // and not killed: they are on other hosts
}

TEST_F(SshRunner, CtrlCReachesTheRanksOfAllHostsWhichMaySave) {
  StartedTool tool(launch_sh("trap 'sleep 0.3; echo saved; exit 0' INT; echo ready; while true; do sleep 0.1; done"),
                   environment());
  ASSERT_TRUE(tool.printed("ready", 3)) << tool.err();
  kill(tool.pid(), SIGINT);
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_THAT(tool.out(), AllOf(HasSubstr("[a rank 0] saved\n"), HasSubstr("[b rank 2] saved\n")));
}

TEST_F(SshRunner, ASecondCtrlCEndsAllHostsAtOnce) {
  StartedTool tool(launch_sh("trap '' TERM; trap 'echo got it' INT; echo pid=$$; while true; do sleep 0.1; done"),
                   environment());
  ASSERT_TRUE(tool.printed("pid=", 3)) << tool.err();
  const auto pids = tool.pids_after("pid=");
  kill(tool.pid(), SIGINT);
  ASSERT_TRUE(tool.printed("got it", 3));
  kill(tool.pid(), SIGINT);
  EXPECT_EQ(tool.wait(seconds(20)), 130);
  EXPECT_TRUE(all_gone(pids, seconds(10)));  // their host's launcher finds its line closed, and gives them 4 s
}

TEST_F(SshRunner, AHostThatCannotBeReachedIsNamedAndTheOthersAreStopped) {
  write("hosts", "a slots=1\naway slots=1\n");
  StartedTool tool(launch_sh("exec sleep 60"), environment());
  EXPECT_EQ(tool.wait(), 255);
  EXPECT_THAT(tool.err(), AllOf(HasSubstr("error: away could not be reached, or its connection was lost"),
                                HasSubstr("No route to host"), HasSubstr("'ssh away true' must work here")));
}

TEST_F(SshRunner, AProgramThatAHostHasNotIsToldByThatHost) {
  Words words = launch_sh("");
  words.resize(words.size() - 3);
  words.emplace_back("no-such-program");
  StartedTool tool(words, environment());
  EXPECT_EQ(tool.wait(), 2);
  EXPECT_THAT(tool.err(), HasSubstr("error: program 'no-such-program' not found"));
}

TEST_F(SshRunner, ADryRunSaysWhatWouldRunWhereAndStartsNothing) {
  Words words = launch_sh("echo started");
  words.insert(words.begin() + 1, "--dry-run");
  StartedTool tool(words, environment());
  EXPECT_EQ(tool.wait(), 0) << tool.err();
  EXPECT_THAT(tool.out(),
              AllOf(HasSubstr("3 ranks on 2 hosts, which meet at 127.0.0.1:29500\n"),
                    HasSubstr("a: slots 0, 1\n  rank 0: sh -c 'echo started'\n"),
                    HasSubstr("b: slot 0\n  rank 2: sh -c 'echo started'\n"), HasSubstr("ssh -o BatchMode=yes")));
  EXPECT_FALSE(std::filesystem::exists(at("asked")));
}

TEST(SshWords, HavePortAndArgumentsBeforeTheHost) {
  const LaunchRequest request{.launcher_args = "-i 'my key'", .ssh_port = 2222};
  const Words words = ssh_words(request, "a");
  EXPECT_THAT(Words(words.end() - 5, words.end()), ::testing::ElementsAre("-p", "2222", "-i", "my key", "a"));
}

}  // namespace
}  // namespace tessera::launch::ssh_runner_test

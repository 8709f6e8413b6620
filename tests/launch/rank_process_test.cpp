#include "tessera/launch/rank_process.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <thread>

#include "tessera/base/deadline.h"
#include "tessera/base/error.h"

namespace tessera::launch::rank_process_test {
namespace {

TEST(RankProcess, IsSeenToBeEndingBeforeItsEndIsTaken) {
  const RankPlan plan{.rank = 1, .command = {"sleep", "60"}};
  RankProcess process(plan, "/bin/sleep", {});
  EXPECT_FALSE(process.ending());
  process.signal(SIGKILL);
  const Deadline deadline(std::chrono::seconds(10), "the end of sleep");
  while (!process.ending()) {
    ASSERT_FALSE(deadline.expired());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  auto exit = process.poll_exit();
  for (; !exit; exit = process.poll_exit()) ASSERT_FALSE(deadline.expired());
  EXPECT_EQ(exit->signal, SIGKILL);
  EXPECT_FALSE(process.running());
}

TEST(RankProcess, AFileThatIsNoProgramIsAUsageError) {
  char path[] = "/tmp/launch_test_XXXXXX";
  const int file = mkstemp(path);
  ASSERT_EQ(write(file, "text\n", 5), 5);
  fchmod(file, 0755);
  close(file);
  try {
    RankProcess process({.command = {path}}, path, {});
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(error.report().fix.find("#!"), std::string::npos);
  }
  unlink(path);
}

TEST(RankProcess, EndsWithItsOwner) {
  pid_t pid = 0;
  {
    const RankPlan plan{.command = {"sleep", "60"}};
    RankProcess process(plan, "/bin/sleep", {});
    pid = process.pid();
  }
  EXPECT_NE(kill(pid, 0), 0);
}

}  // namespace
}  // namespace tessera::launch::rank_process_test

// A folder is saved into by one process at a time, which is named; one that has ended holds nothing.
#include "tessera/storage/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tests/support/temporary_folder.h"

namespace tessera::storage::folder_lock_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

// Another process that takes the lock, and has it until told to end, or killed.
class OtherProcess {
 public:
  explicit OtherProcess(const fs::path& folder) {
    int says[2], hears[2];
    EXPECT_EQ(pipe(says) + pipe(hears), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(hears[1]);
      hold(folder, says[1], hears[0]);
    }
    close(says[1]);
    close(hears[0]);
    says_ = says[0];
    tells_ = hears[1];
    char answer = 0;
    EXPECT_EQ(read(says_, &answer, 1), 1);
    has_it_ = answer == '+';
  }
  ~OtherProcess() {
    end();
    close(says_);
  }

  bool has_it() const { return has_it_; }
  pid_t pid() const { return pid_; }
  void kill_it() {
    kill(pid_, SIGKILL);
    end();
  }
  void end() {
    if (pid_ < 0) return;
    close(tells_);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  [[noreturn]] static void hold(const fs::path& folder, int says, int hears) {
    try {
      const FolderLock lock(folder);
      EXPECT_EQ(write(says, "+", 1), 1);
      char none = 0;
      while (read(hears, &none, 1) > 0) {
      }
    } catch (const Error&) {
      EXPECT_EQ(write(says, "-", 1), 1);
    }
    _exit(0);
  }

  pid_t pid_ = -1;
  int says_ = -1, tells_ = -1;
  bool has_it_ = false;
};

ErrorReport refusal(const fs::path& folder) {
  try {
    const FolderLock lock(folder);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.report();
  }
  return {"it was had", "", ""};
}

bool is_free(const fs::path& folder) { return refusal(folder).what == "it was had"; }

class FolderLocks : public testing::Test {
 protected:
  fs::path folder() const { return folder_.path() / "checkpoints"; }
  fs::path file() const { return folder() / ".tessera.lock"; }
  void write_holder(const std::string& boot) const {
    fs::create_directories(folder());
    std::ofstream(file()) << nlohmann::json{
        {"host", "node7"}, {"boot", boot}, {"pid", 4711}, {"since", "2026-01-02 03:04:05 UTC"}};
  }

  test::TemporaryFolder folder_;
};

TEST_F(FolderLocks, AnotherProcessIsRefusedAndToldWhoHasIt) {
  OtherProcess other(folder());
  ASSERT_TRUE(other.has_it());
  const ErrorReport report = refusal(folder());
  EXPECT_THAT(report.what,
              AllOf(HasSubstr("another run saves into this folder: process " + std::to_string(other.pid())),
                    HasSubstr(" on host " + host_name()),
                    MatchesRegex(".*since 20[0-9][0-9]-[01][0-9]-[0-3][0-9] [0-9:]* UTC")));
  EXPECT_EQ(report.where, file());
  other.end();
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_TRUE(is_free(folder()));
  EXPECT_TRUE(fs::is_empty(folder()));
}

TEST_F(FolderLocks, OfAProcessThatWasKilledIsFree) {
  OtherProcess other(folder());
  ASSERT_TRUE(other.has_it());
  other.kill_it();
  EXPECT_TRUE(fs::exists(file()));
  EXPECT_TRUE(is_free(folder()));
}

TEST_F(FolderLocks, OfAProcessThatIsStoppedIsNot) {
  OtherProcess other(folder());
  ASSERT_TRUE(other.has_it());
  kill(other.pid(), SIGSTOP);
  EXPECT_FALSE(is_free(folder()));
  kill(other.pid(), SIGCONT);
}

TEST_F(FolderLocks, AProcessMayHaveOneSeveralTimes) {
  const auto first = std::make_unique<FolderLock>(folder());
  auto second = std::make_unique<FolderLock>(folder() / ".." / "checkpoints");
  second = nullptr;
  EXPECT_FALSE(OtherProcess(folder()).has_it());
}

// A data loader's workers are forks, and may outlive their parent by a moment.
TEST_F(FolderLocks, AForkDoesNotHoldIt) {
  auto lock = std::make_unique<FolderLock>(folder());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t fork_of_this = fork();
  if (fork_of_this == 0) {
    char word = 0;
    EXPECT_EQ(read(ends[0], &word, 1), 1);
    lock = nullptr;
    _exit(fs::exists(file()) ? 0 : 1);
  }
  lock = nullptr;
  {
    OtherProcess other(folder());
    EXPECT_TRUE(other.has_it());
    EXPECT_EQ(write(ends[1], "!", 1), 1);
    int status = 0;
    waitpid(fork_of_this, &status, 0);
    EXPECT_EQ(status, 0) << "the fork removed the file";
  }
}

TEST_F(FolderLocks, IsTakenAgainWhereSomebodyRemovedTheFolder) {
  const FolderLock first(folder());
  fs::remove_all(folder());
  const FolderLock second(folder());
  EXPECT_FALSE(OtherProcess(folder()).has_it());
}

TEST_F(FolderLocks, OneThatAnotherRunTookOverIsLostForGood) {
  const FolderLock lock(folder());
  write_holder("another kernel");
  EXPECT_THAT(refusal(folder()).what, AllOf(HasSubstr("another run took this folder over: process 4711 on host node7"),
                                            HasSubstr("this process was stopped")));
}

// Of a host whose locks are not seen here, only a file that somebody goes on touching shows that it runs.
TEST_F(FolderLocks, OfAnotherHostIsWatched) {
  write_holder("another kernel");
  const pid_t toucher = fork();
  if (toucher == 0) {
    for (int i = 0; i < 30; ++i) {
      usleep(500'000);
      fs::last_write_time(file(), fs::file_time_type::clock::now());
    }
    _exit(0);
  }
  EXPECT_EQ(refusal(folder()).what,
            "another run saves into this folder: process 4711 on host node7, since 2026-01-02 03:04:05 UTC");
  kill(toucher, SIGKILL);
  waitpid(toucher, nullptr, 0);
  EXPECT_TRUE(is_free(folder()));
}

TEST_F(FolderLocks, AFileOfAnotherKindIsRefused) {
  fs::create_directories(folder());
  fs::create_symlink(folder_.path() / "elsewhere", file());
  EXPECT_THROW(FolderLock lock(folder()), Error);
  EXPECT_FALSE(fs::exists(folder_.path() / "elsewhere"));
  fs::remove(file());
  ASSERT_EQ(mkfifo(file().c_str(), 0600), 0);
  EXPECT_THROW(FolderLock lock(folder()), Error);
}

TEST_F(FolderLocks, OfADamagedFileIsFree) {
  fs::create_directories(folder());
  std::ofstream(file()) << "[[[[";
  EXPECT_TRUE(is_free(folder()));
}

}  // namespace
}  // namespace tessera::storage::folder_lock_test

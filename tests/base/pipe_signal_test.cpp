#include "tessera/base/pipe_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "tessera/base/unique_fd.h"

namespace tessera::pipe_signal_test {
namespace {

std::atomic<int> arrived = 0;

class PipeSignal : public testing::Test {
 protected:
  PipeSignal() {
    arrived = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { ++arrived; };
    sigaction(SIGPIPE, &action, &former_);
  }
  ~PipeSignal() override { sigaction(SIGPIPE, &former_, nullptr); }

  // The errno of a write to a pipe that nobody reads.
  static int write_to_nobody() {
    int ends[2];
    if (pipe(ends) != 0) return -1;
    close(ends[0]);
    const UniqueFd end(ends[1]);
    return write(end.get(), "x", 1) == -1 ? errno : 0;
  }

 private:
  struct sigaction former_;
};

TEST_F(PipeSignal, DoesNotArriveWhileBlockedNorAfterwards) {
  {
    const PipeSignalBlocked blocked;
    EXPECT_EQ(write_to_nobody(), EPIPE);
    {
      const PipeSignalBlocked inner;
      EXPECT_EQ(write_to_nobody(), EPIPE);
    }
    EXPECT_EQ(write_to_nobody(), EPIPE);
  }
  EXPECT_EQ(arrived, 0);
  EXPECT_EQ(write_to_nobody(), EPIPE);
  EXPECT_EQ(arrived, 1) << "the program has its signal back";
}

TEST_F(PipeSignal, ThreadsThatAreStartedMeanwhileNeverGetIt) {
  std::atomic<bool> goes_on = false;
  std::thread thread;
  {
    const PipeSignalBlocked blocked;
    thread = std::thread([&] {
      goes_on.wait(false);
      write_to_nobody();
    });
  }
  goes_on = true;
  goes_on.notify_all();
  thread.join();
  EXPECT_EQ(arrived, 0);
}

TEST_F(PipeSignal, OneThatTheProgramBlockedItselfIsLeftToIt) {
  sigset_t set, former;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, &former);
  write_to_nobody();
  {
    const PipeSignalBlocked blocked;
    write_to_nobody();
  }
  EXPECT_EQ(arrived, 0);
  pthread_sigmask(SIG_SETMASK, &former, nullptr);
  EXPECT_EQ(arrived, 1);
}

}  // namespace
}  // namespace tessera::pipe_signal_test

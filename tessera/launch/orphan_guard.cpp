#include "tessera/launch/orphan_guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

struct Message {
  int rank;
  pid_t group;  // 0: nothing to kill any more
};

// Runs in a fork of the launcher, which may have had threads: nothing here may allocate or lock.
[[noreturn]] void guard(int line, std::vector<pid_t>& groups) {
  setsid();
  prctl(PR_SET_NAME, "tessera guard");
  // The launcher's other descriptors would keep a pipe open that somebody waits to see closed.
  if (line > 0) close_range(0, static_cast<unsigned>(line) - 1, 0);
  close_range(static_cast<unsigned>(line) + 1, ~0u, 0);
  Message message;
  while (true) {
    const ssize_t count = read(line, &message, sizeof message);
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof message) break;
    groups[static_cast<size_t>(message.rank)] = message.group;
  }
  for (const pid_t group : groups) {
    if (group > 0) kill(-group, SIGKILL);
  }
  _exit(0);
}

}  // namespace

OrphanGuard::OrphanGuard(int nproc) {
  std::vector<pid_t> groups(static_cast<size_t>(nproc), 0);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorKind::kMachine,
                {"cannot create a pipe for the guard process: " + errno_text(errno), "", "raise 'ulimit -n'"});
  }
  UniqueFd read_end(ends[0]);
  line_ = UniqueFd(ends[1]);
  sigset_t all;
  sigset_t former;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  pid_ = fork();
  const int fork_error = errno;
  if (pid_ == 0) guard(read_end.get(), groups);  // with all signals blocked, for good
  pthread_sigmask(SIG_SETMASK, &former, nullptr);
  if (pid_ < 0) {
    throw Error(ErrorKind::kMachine,
                {"cannot start the guard process: " + errno_text(fork_error), "", "raise 'ulimit -u'"});
  }
}

OrphanGuard::~OrphanGuard() {
  line_.reset();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void OrphanGuard::tell(int rank, pid_t group) {
  const Message message{rank, group};
  // Smaller than PIPE_BUF, so written whole; EPIPE when the guard was killed: then there is only the kernel's help.
  [[maybe_unused]] const ssize_t written = write(line_.get(), &message, sizeof message);
}

}  // namespace tessera::launch

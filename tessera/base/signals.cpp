#include "tessera/base/signals.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// A handler has no other way to its inbox. -1: there is none.
std::atomic<int> inbox_write_fd{-1};

void put_into_inbox(int signal) {
  const int error_before = errno;
  const unsigned char number = static_cast<unsigned char>(signal);
  // A full pipe drops the signal: 65536 others are waiting to be read.
  [[maybe_unused]] const ssize_t written = write(inbox_write_fd.load(), &number, 1);
  errno = error_before;
}

}  // namespace

SignalInbox::SignalInbox(std::initializer_list<int> signals) {
  TESSERA_INVARIANT(inbox_write_fd.load() == -1);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw Error(ErrorKind::kMachine,
                {"cannot create a pipe for signals: " + errno_text(errno), "", "raise 'ulimit -n'"});
  }
  read_fd_ = ends[0];
  inbox_write_fd.store(ends[1]);
  for (const int signal : signals) {
    struct sigaction former;
    sigaction(signal, nullptr, &former);
    const bool ignored = (former.sa_flags & SA_SIGINFO) == 0 && former.sa_handler == SIG_IGN;
    if (ignored && signal != SIGCHLD) continue;
    struct sigaction action {};
    action.sa_handler = put_into_inbox;
    sigfillset(&action.sa_mask);
    // No SA_RESTART: a wait in progress ends with EINTR, so that its loop looks into the inbox.
    action.sa_flags = signal == SIGCHLD ? SA_NOCLDSTOP : 0;
    sigaction(signal, &action, nullptr);
    former_.emplace_back(signal, former);
  }
}

SignalInbox::~SignalInbox() {
  for (const auto& [signal, former] : former_) sigaction(signal, &former, nullptr);
  close(inbox_write_fd.exchange(-1));
  close(read_fd_);
}

std::optional<int> SignalInbox::next() {
  unsigned char number = 0;
  if (read(read_fd_, &number, 1) != 1) return std::nullopt;
  return number;
}

}  // namespace tessera

#include "tessera/base/pipe_signal.h"

#include <ctime>

namespace tessera {
namespace {

sigset_t pipe_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() {
  sigset_t pending;
  return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

PipeSignalBlocked::PipeSignalBlocked() : was_pending_(is_pending()) {
  const sigset_t set = pipe_signal();
  pthread_sigmask(SIG_BLOCK, &set, &former_);
}

PipeSignalBlocked::~PipeSignalBlocked() {
  const sigset_t set = pipe_signal();
  const timespec at_once{};
  if (!was_pending_ && is_pending()) sigtimedwait(&set, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &former_, nullptr);
}

}  // namespace tessera

// Signals as events to be read when convenient, instead of ending the process at once.
//
//   SignalInbox inbox({SIGINT, SIGTERM});
//   while (training) { if (inbox.next()) break; … }
//
// While it lives, the given signals are caught; the former handlers come back when it ends. A signal that the process
// was told to ignore (nohup, a shell's background job) stays ignored; SIGCHLD is always caught. One inbox at a time in
// a process (an invariant); it catches signals on whatever thread they arrive, next() is for one thread.
#pragma once

#include <csignal>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace tessera {

// By which a scheduler says that the time of a run is up (sbatch --signal=USR1@120): a training saves and leaves with a
// code that asks to be started again later, EX_TEMPFAIL of sysexits.h.
inline constexpr int kRequeueSignal = SIGUSR1;
inline constexpr int kRequeueCode = 75;

class SignalInbox {
 public:
  explicit SignalInbox(std::initializer_list<int> signals);
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  // Readable (for poll) while next() has something to return.
  int fd() const { return read_fd_; }

  // The number of the oldest signal not yet taken; never waits.
  std::optional<int> next();

 private:
  int read_fd_ = -1;
  std::vector<std::pair<int, struct sigaction>> former_;
};

}  // namespace tessera

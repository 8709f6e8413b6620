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

// For libraries that write to connections without MSG_NOSIGNAL: a peer that went away would end the process by SIGPIPE,
// whose default action a C++ program seldom changes.
//
//   const PipeSignalBlocked blocked;
//   library.send(…);  // fails with EPIPE
//
// Of the calling thread alone, so nothing changes for the program; a thread that is started meanwhile has the signal
// blocked for good. Afterwards the thread's mask is as before, and no SIGPIPE of the time between is left to arrive.
#pragma once

#include <csignal>

namespace tessera {

class PipeSignalBlocked {
 public:
  PipeSignalBlocked();
  ~PipeSignalBlocked();
  PipeSignalBlocked(const PipeSignalBlocked&) = delete;
  PipeSignalBlocked& operator=(const PipeSignalBlocked&) = delete;

 private:
  sigset_t former_;
  bool was_pending_;
};

}  // namespace tessera

// The thread that MPI takes for a process's main one: it initializes MPI, finalizes it, and makes every call in which
// MPI waits for other processes. No argument of MPI bounds such a call in time. So whoever asked goes on when the time
// is up, and the thread is left behind in the call; it is never joined.
//
// run() may be called from any thread, by one at a time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

namespace tessera::comm::mpi {

class MainThread {
 public:
  MainThread();
  MainThread(const MainThread&) = delete;
  MainThread& operator=(const MainThread&) = delete;

  // What the call returned; nothing where it has not come back within the time. What it touches has to live as long as
  // the process. After that no other call may be made.
  std::optional<int> run(std::function<int()> call, std::chrono::milliseconds at_most);

  bool is_lost() const { return is_lost_; }

 private:
  struct Inbox;
  std::shared_ptr<Inbox> inbox_;
  bool is_lost_ = false;
};

}  // namespace tessera::comm::mpi

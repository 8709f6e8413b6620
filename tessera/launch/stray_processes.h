// What the ranks have started and left behind in process groups of their own: while this lives, the kernel hands such
// processes to us instead of to init, so that they can be ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <set>

namespace tessera::launch {

class StrayProcesses {
 public:
  StrayProcesses();   // the children that we have now are not strays
  ~StrayProcesses();  // later ones go where they went before
  StrayProcesses(const StrayProcesses&) = delete;
  StrayProcesses& operator=(const StrayProcesses&) = delete;

  // A child that somebody else waits for, until it is forgotten.
  void except(pid_t pid) { excepted_.insert(pid); }
  void forget(pid_t pid) { excepted_.erase(pid); }

  // Reaps those that have ended. Never waits.
  void reap();

  // Kills all, and waits until they are gone or `allowed` is over.
  void kill_all(std::chrono::milliseconds allowed);

 private:
  std::set<pid_t> strays() const;

  int former_subreaper_ = 0;
  std::set<pid_t> excepted_;
};

}  // namespace tessera::launch

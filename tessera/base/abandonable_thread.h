// A thread for calls that may never return: library calls that wait for a peer without a limit of their own.
//
//   if (!thread.run([store] { store->check({"key"}); }, 5s)) …   // still waiting; left behind
//
// A call that is left behind goes on by itself, with everything that it holds, until it returns or the process ends; so
// it captures by value. Safe to use from several threads, one call at a time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>

namespace tessera {

class AbandonableThread {
 public:
  AbandonableThread();
  ~AbandonableThread();  // does not wait
  AbandonableThread(const AbandonableThread&) = delete;
  AbandonableThread& operator=(const AbandonableThread&) = delete;

  // Runs the call and throws what it throws. False when it has not returned after `at_most`, the wait for other
  // threads' calls included; once one was left behind, always, and at once.
  bool run(std::function<void()> call, std::chrono::milliseconds at_most);

 private:
  struct Work;
  std::timed_mutex one_at_a_time_;
  std::shared_ptr<Work> work_;
};

}  // namespace tessera

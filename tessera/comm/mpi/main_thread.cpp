#include "tessera/comm/mpi/main_thread.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "tessera/base/error.h"

namespace tessera::comm::mpi {

struct MainThread::Inbox {
  std::mutex mutex;
  std::condition_variable filled;
  std::deque<std::packaged_task<int()>> calls;
};

MainThread::MainThread() : inbox_(std::make_shared<Inbox>()) {
  std::thread([inbox = inbox_] {
    while (true) {
      std::unique_lock lock(inbox->mutex);
      inbox->filled.wait(lock, [&] { return !inbox->calls.empty(); });
      auto call = std::move(inbox->calls.front());
      inbox->calls.pop_front();
      lock.unlock();
      call();
    }
  }).detach();
}

std::optional<int> MainThread::run(std::function<int()> call, std::chrono::milliseconds at_most) {
  TESSERA_INVARIANT(!is_lost_);
  std::packaged_task<int()> task(std::move(call));
  std::future<int> code = task.get_future();
  {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->calls.push_back(std::move(task));
  }
  inbox_->filled.notify_one();
  if (code.wait_for(at_most) == std::future_status::ready) return code.get();
  is_lost_ = true;
  return std::nullopt;
}

}  // namespace tessera::comm::mpi

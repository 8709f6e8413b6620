#include "tessera/base/abandonable_thread.h"

#include <condition_variable>
#include <exception>
#include <thread>
#include <utility>

namespace tessera {

struct AbandonableThread::Work {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> call;  // empty once it has returned
  std::exception_ptr failure;
  bool started = false;
  bool ends = false;
  bool abandoned = false;

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ends || call; });
      if (!call) return;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        call();
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      failure = thrown;
      call = nullptr;
      changed.notify_all();
    }
  }
};

AbandonableThread::AbandonableThread() : work_(std::make_shared<Work>()) {}

AbandonableThread::~AbandonableThread() {
  const std::lock_guard lock(work_->mutex);
  work_->ends = true;
  work_->changed.notify_all();
}

bool AbandonableThread::run(std::function<void()> call, std::chrono::milliseconds at_most) {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  const std::unique_lock turn(one_at_a_time_, deadline);
  if (!turn.owns_lock()) return false;
  std::unique_lock lock(work_->mutex);
  if (work_->abandoned) return false;
  work_->call = std::move(call);
  if (!std::exchange(work_->started, true)) std::thread([work = work_] { work->serve(); }).detach();
  work_->changed.notify_all();
  work_->abandoned = !work_->changed.wait_until(lock, deadline, [this] { return !work_->call; });
  if (work_->abandoned) return false;
  if (const auto failure = std::exchange(work_->failure, nullptr)) std::rethrow_exception(failure);
  return true;
}

}  // namespace tessera

#include "tessera/comm/escorts.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace tessera::comm {
namespace {

struct Outcome {
  std::mutex mutex;
  std::condition_variable ended;
  bool is_over = false;
  std::exception_ptr failure;
};

class Led final : public Exchange::Pending {
 public:
  explicit Led(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}

  void wait(Exchange::TimePoint /*deadline*/) override {
    std::unique_lock lock(outcome_->mutex);
    outcome_->ended.wait(lock, [this] { return outcome_->is_over; });
    if (outcome_->failure) std::rethrow_exception(outcome_->failure);
  }

 private:
  std::shared_ptr<Outcome> outcome_;
};

}  // namespace

struct Escorts::Work {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  size_t idle = 0;  // threads
  bool ends = false;

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      ++idle;
      changed.wait(lock, [this] { return ends || !waiting.empty(); });
      --idle;
      if (waiting.empty()) return;
      auto operation = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      operation();
      operation = nullptr;  // and what it holds, outside of the lock
      lock.lock();
    }
  }
};

Escorts::Escorts() : work_(std::make_shared<Work>()) {}

Escorts::~Escorts() {
  const std::lock_guard lock(work_->mutex);
  work_->ends = true;
  work_->changed.notify_all();
}

Exchange::PendingPtr Escorts::lead(std::function<void()> operation) {
  auto outcome = std::make_shared<Outcome>();
  auto watched = [outcome, operation = std::move(operation)] {
    std::exception_ptr failure;
    try {
      operation();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(outcome->mutex);
    outcome->is_over = true;
    outcome->failure = failure;
    outcome->ended.notify_all();
  };
  const std::lock_guard lock(work_->mutex);
  work_->waiting.push_back(std::move(watched));
  if (work_->idle < work_->waiting.size()) std::thread([work = work_] { work->run(); }).detach();
  work_->changed.notify_one();
  return std::make_unique<Led>(std::move(outcome));
}

}  // namespace tessera::comm

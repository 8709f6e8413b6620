#include "tessera/comm/wait_board.h"

#include <fmt/format.h>

#include <chrono>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr std::chrono::milliseconds kLook{500};      // a wait that two looks see is said
constexpr std::chrono::milliseconds kAnswer{5'000};  // the longest wait for the store: what is told here is not vital

std::string key_of(int rank) { return fmt::format("waiting/{}", rank); }

}  // namespace

WaitBoard::WaitBoard(const c10::intrusive_ptr<c10d::Store>& store, int rank) : store_(store->clone()), rank_(rank) {
  store_->setTimeout(kAnswer);
  watcher_ = std::thread([this] { watch(); });
}

WaitBoard::~WaitBoard() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

void WaitBoard::begin(const std::string& operation) {
  const std::lock_guard lock(mutex_);
  operation_ = operation;
  ++wait_number_;
}

void WaitBoard::end() {
  const std::lock_guard lock(mutex_);
  operation_.clear();
}

void WaitBoard::watch() {
  int64_t seen = 0;
  bool said = false;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [this] { return stopping_; })) {
    const bool still_waits = !operation_.empty() && wait_number_ == seen;
    seen = wait_number_;
    if (still_waits == said) continue;
    const std::string operation = operation_;
    lock.unlock();
    try {
      if (still_waits) {
        store_->set(key_of(rank_), operation);
      } else {
        store_->deleteKey(key_of(rank_));
      }
      said = still_waits;
    } catch (const std::exception&) {  // rank 0 and its store are gone: the backend tells the waiting thread
    }
    lock.lock();
  }
}

std::string WaitBoard::describe_others(const std::vector<int>& ranks) const {
  std::this_thread::sleep_for(3 * kLook);
  std::string text;
  try {
    for (const int rank : ranks) {
      if (rank == rank_) continue;
      const bool waits = store_->check({key_of(rank)});
      text += fmt::format("{}rank {} {}", text.empty() ? "" : "; ", rank,
                          waits ? "is waiting in the " + store_->get_to_str(key_of(rank))
                                : std::string("is not waiting in a collective"));
    }
  } catch (const Error& error) {
    return error.report().what;
  } catch (const std::exception&) {
    return "the run's store, which rank 0 or its launcher serves, is gone";
  }
  return text;
}

}  // namespace tessera::comm

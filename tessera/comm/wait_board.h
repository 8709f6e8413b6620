// What each rank waits for, told to the others: so that an expired wait can say who is where.
//
// A rank that has waited for about a second in one collective says so in the store (a thread of its own writes it,
// since the waiting thread is inside the backend); when a wait fails, describe_others tells what every rank said. A
// wait shorter than that costs two unlocked stores. One wait at a time, from any thread.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace tessera::comm {

class WaitBoard {
 public:
  // `store`, whose calls all end, is cloned.
  WaitBoard(const c10::intrusive_ptr<c10d::Store>& store, int rank);
  ~WaitBoard();

  // A connection of its own: it may answer where another was left behind.
  c10d::Store& store() { return *store_; }

  void begin(const std::string& operation);
  void end();

  // For each of these ranks but this one "rank 2 is waiting in the all-gather of 'layers.3'", or that it is not
  // waiting; or why that cannot be told. Takes a moment, so that ranks which began to wait just now have time to say
  // so.
  std::string describe_others(const std::vector<int>& ranks) const;

 private:
  void watch();

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string operation_;  // empty: not waiting
  int64_t wait_number_ = 0;
  bool stopping_ = false;
  std::thread watcher_;
};

}  // namespace tessera::comm

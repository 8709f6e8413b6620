// What each rank waits for, and the report where a wait never ends.
//
// Protocol, when a rank's wait has taken too long:
//   1) (that rank)   counts itself in the store; the first one writes the report
//   2) (every rank)  a thread of its own sees the count, and says what its rank waits for or does instead, and where
//                    its main thread is (main_stack.h)
//   3) (the first)   gathers what was said within a few seconds, writes the report once, on standard error, and puts
//                    its conclusion into the store
//   4) (that rank)   any other whose wait ends meanwhile takes the conclusion from there, so that no rank is gone, and
//                    the run ended by its launcher, before the report is written
//
// Nothing is told while all is well; a look at the count costs one request every half a second from a rank that waits,
// and every second from one that does not. Waits of several threads may overlap.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "tessera/comm/hang_report.h"

namespace tessera::comm {

class WaitBoard {
 public:
  // `store`, whose calls all end, is cloned.
  WaitBoard(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size);
  ~WaitBoard();  // does not wait for a store that does not answer

  // A connection of its own: it may answer where another was left behind. Its calls take a few seconds at most.
  c10d::Store& store() { return *store_; }

  struct Entry {
    Awaited awaited;
    std::chrono::steady_clock::time_point since;
  };

  // Of all ranks, as hang_report.h names them. From the thread that makes groups, before anything hangs.
  void name_places(std::vector<std::string> places) { places_ = std::move(places); }
  const std::vector<std::string>& places() const { return places_; }

  // This rank waits for something, for as long as this lives, which is not longer than the board does.
  class Waiting {
   public:
    Waiting(WaitBoard& board, Awaited awaited);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    WaitBoard& board_;
    std::list<Entry>::iterator entry_;
  };

  // Whether a rank has found that its wait takes too long: what fails about then fails for it, as a backend closes the
  // connections of a wait that is over. Looks for a moment, as that rank may be about to count itself.
  bool hang_noticed();

  // Of the rank whose wait has taken too long: takes part in the report, and returns its conclusion, or why there is
  // none. `complaint`: what it has to say, for the head of the report. Takes some seconds at most.
  std::string report_hang(const std::string& complaint);

 private:
  struct Watch;

  std::string gather(const std::string& complaint);
  std::string await_conclusion();
  void see_others_off();

  const int rank_;
  const int size_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<std::string> places_;  // empty: none
  std::shared_ptr<Watch> watch_;
  std::thread watcher_;
};

}  // namespace tessera::comm

// Large blocks of memory, mapped from the system one by one and kept when they are freed, so that the next step gets
// pages that are there instead of fresh ones that the system must find and clear.
//
// What is kept never raises the peak: before more would be mapped than the most that was ever in use at once, blocks
// that lie idle go back to the system, longest idle first. Where step after step asks for such a size, a larger one
// that is idle serves it instead, or blocks of two sizes would drive each other out for ever. And it is what steps
// need: a block that several steps in a row did not ask for goes back, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace tessera::storage {

struct MappedBlock {
  void* address = nullptr;  // at a page; null where the system refused
  size_t bytes = 0;         // whole pages, at most an eighth more than were asked for, or see above twice as many
};

// Thread-safe. Blocks in use when it is destroyed stay mapped.
class MappedBlocks {
 public:
  MappedBlocks() = default;
  ~MappedBlocks();
  MappedBlocks(const MappedBlocks&) = delete;
  MappedBlocks& operator=(const MappedBlocks&) = delete;

  // What lies in it is unspecified.
  MappedBlock take(size_t bytes);
  void give_back(MappedBlock block);

  // A step of training is over: blocks that it and the `kIdleSteps` - 1 before it did not use go back to the system.
  void end_step();

  // All that is idle, now; the peak is counted anew.
  void release_idle();

  size_t bytes_in_use() const;
  size_t bytes_idle() const;

  // Around fork(), so that a child never finds the lock taken by a thread that it does not have.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  static constexpr uint64_t kIdleSteps = 4;

 private:
  struct Idle {
    void* address;
    uint64_t freed;  // counts the blocks that were freed
    uint64_t step;   // in which it was
  };

  // The smallest that has at least `bytes` and at most `most`, of these the one freed last: it is the likeliest to be
  // in a cache. Null where none is.
  MappedBlock pop_idle(size_t bytes, size_t most);
  // Instead of evicting idle blocks for a size, as in an earlier step; the first of all makes what stays. Null where
  // none is.
  MappedBlock pop_twice_as_large(size_t bytes);
  // Back to the system, until at most `bytes` are idle.
  void shrink_idle_to(size_t bytes);

  mutable std::mutex mutex_;
  std::map<size_t, std::vector<Idle>>
      idle_;  // by size; no list is empty, each is in the order in which they were freed
  struct Steps {
    uint64_t first, last;
  };
  std::map<size_t, Steps> evicting_;  // by size: steps in which idle blocks had to go for it, or would have had to
  size_t bytes_in_use_ = 0;
  size_t most_in_use_ = 0;
  size_t bytes_idle_ = 0;
  uint64_t freed_ = 0;
  uint64_t step_ = 0;
};

}  // namespace tessera::storage

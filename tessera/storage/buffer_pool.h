// A few page-aligned buffers that are used again and again, each for sizes near the one that it was made for: otherwise
// a model's largest tensor would in time make all of them as large as itself. One thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/storage/aligned_buffer.h"

namespace tessera::storage {

class BufferPool {
 public:
  // `pinned`: what the buffers are made of, as far as it goes; null: of ordinary memory.
  explicit BufferPool(size_t count, std::shared_ptr<PinnedMemory> pinned = nullptr)
      : count_(count), pinned_(std::move(pinned)) {
    spare_.reserve(count);
  }

  // With room for `bytes`. One more than `count` are made when none is left, and kept no longer than they are used.
  AlignedBuffer take(size_t bytes);
  size_t count() const { return count_; }
  bool has_spare() const { return taken_ < count_; }

  void give_back(AlignedBuffer buffer) noexcept;

 private:
  size_t count_;
  std::shared_ptr<PinnedMemory> pinned_;
  size_t taken_ = 0;
  std::vector<AlignedBuffer> spare_;  // the smallest first
};

}  // namespace tessera::storage

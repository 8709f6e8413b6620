// A few page-aligned buffers that are used again and again. One thread at a time.
#pragma once

#include <vector>

#include "tessera/storage/aligned_buffer.h"

namespace tessera::storage {

class BufferPool {
 public:
  explicit BufferPool(size_t count) : count_(count) { spare_.reserve(count); }

  // One more than `count` are made when none is left, and kept no longer than they are used.
  AlignedBuffer take() {
    ++taken_;
    if (spare_.empty()) return {};
    AlignedBuffer buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }
  size_t count() const { return count_; }
  bool has_spare() const { return taken_ < count_; }

  void give_back(AlignedBuffer buffer) noexcept {
    if (--taken_ + spare_.size() < count_) spare_.push_back(std::move(buffer));
  }

 private:
  size_t count_;
  size_t taken_ = 0;
  std::vector<AlignedBuffer> spare_;
};

}  // namespace tessera::storage

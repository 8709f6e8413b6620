#include "tessera/storage/buffer_pool.h"

#include <algorithm>
#include <utility>

namespace tessera::storage {

AlignedBuffer BufferPool::take(size_t bytes) {
  const size_t needed = whole_pages(bytes);
  const auto fitting = std::find_if(spare_.begin(), spare_.end(),
                                    [needed](const AlignedBuffer& spare) { return spare.capacity() >= needed; });
  AlignedBuffer buffer(pinned_);
  if (fitting != spare_.end() && fitting->capacity() <= 2 * needed) {
    buffer = std::move(*fitting);
    spare_.erase(fitting);
  } else {
    if (!spare_.empty() && taken_ + spare_.size() >= count_) spare_.pop_back();
    buffer.reserve(needed);
  }
  ++taken_;
  return buffer;
}

void BufferPool::give_back(AlignedBuffer buffer) noexcept {
  if (--taken_ + spare_.size() >= count_) return;
  const auto larger = std::find_if(spare_.begin(), spare_.end(), [&buffer](const AlignedBuffer& spare) {
    return spare.capacity() > buffer.capacity();
  });
  spare_.insert(larger, std::move(buffer));
}

}  // namespace tessera::storage

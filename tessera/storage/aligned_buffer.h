// Page-aligned memory for direct I/O. It grows when asked and never shrinks, so that it can be used again and again
// without page faults. Host memory; contents are lost when it grows.
#pragma once

#include <cstddef>

#include "tessera/storage/pages.h"

namespace tessera::storage {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) { reserve(bytes); }
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  // ErrorKind::kMachine when the memory cannot be allocated.
  void reserve(size_t bytes);

  char* data() const { return data_; }
  size_t capacity() const { return capacity_; }

 private:
  char* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace tessera::storage

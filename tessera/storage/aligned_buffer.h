// Page-aligned memory for direct I/O. It grows when asked and never shrinks, so that it can be used again and again
// without page faults. Host memory, pinned for a device if asked; contents are lost when it grows.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "tessera/storage/pages.h"

namespace tessera::storage {

class PinnedMemory;

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes) { reserve(bytes); }

  // Of pinned memory, as long as there is some; null: of none.
  explicit AlignedBuffer(std::shared_ptr<PinnedMemory> pinned) : memory_(std::move(pinned)) {}
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  // ErrorKind::kMachine when the memory cannot be allocated.
  void reserve(size_t bytes);

  char* data() const { return data_; }
  size_t capacity() const { return capacity_; }

 private:
  void let_go();

  std::shared_ptr<PinnedMemory> memory_;
  std::shared_ptr<char> pinned_;  // where data_ lies; null: it is mapped
  char* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace tessera::storage

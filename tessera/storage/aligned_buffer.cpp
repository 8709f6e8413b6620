#include "tessera/storage/aligned_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/storage/pinned_memory.h"

namespace tessera::storage {

AlignedBuffer::~AlignedBuffer() { let_go(); }

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : memory_(other.memory_),
      pinned_(std::move(other.pinned_)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(pinned_, other.pinned_);
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

void AlignedBuffer::reserve(size_t bytes) {
  if (bytes <= capacity_) return;
  let_go();
  const size_t rounded = whole_pages(bytes);
  if (memory_) pinned_ = memory_->pages(rounded);
  data_ = pinned_ ? pinned_.get() : static_cast<char*>(map_pages(rounded));
  if (data_ == nullptr) {
    throw Error(ErrorKind::kMachine,
                {fmt::format("cannot allocate {} of host memory: {}", format_bytes(rounded), errno_text(errno)),
                 "a file buffer", "use more ranks, or a machine with more memory"});
  }
  capacity_ = rounded;
}

void AlignedBuffer::let_go() {
  if (data_ != nullptr && !pinned_) munmap(data_, capacity_);
  pinned_.reset();
  data_ = nullptr;
  capacity_ = 0;
}

}  // namespace tessera::storage

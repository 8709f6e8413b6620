#include "tessera/storage/aligned_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::storage {

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) munmap(data_, capacity_);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

void AlignedBuffer::reserve(size_t bytes) {
  if (bytes <= capacity_) return;
  if (data_ != nullptr) munmap(data_, capacity_);
  data_ = nullptr;
  capacity_ = 0;
  const size_t rounded = whole_pages(bytes);
  data_ = static_cast<char*>(map_pages(rounded));
  if (data_ == nullptr) {
    throw Error(ErrorKind::kMachine,
                {fmt::format("cannot allocate {} of host memory: {}", format_bytes(rounded), errno_text(errno)),
                 "a file buffer", "use more ranks, or a machine with more memory"});
  }
  capacity_ = rounded;
}

}  // namespace tessera::storage

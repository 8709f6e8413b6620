#include "tessera/storage/swap_file.h"

#include "tessera/base/error.h"
#include "tessera/storage/aligned_buffer.h"

namespace tessera::storage {

Extent SwapFile::allocate(uint64_t bytes) {
  const uint64_t rounded = whole_pages(bytes);
  const Extent extent{end_, rounded};
  if (rounded == 0) return extent;
  file_.reserve(end_ + rounded);
  end_ += rounded;
  return extent;
}

SwapFile::Transfer SwapFile::next_transfer() {
  in_flight_.insert(++last_);
  return last_;
}

SwapFile::Transfer SwapFile::start_read(const Extent& extent, uint64_t from, void* into, size_t bytes) {
  if (bytes == 0) return 0;
  TESSERA_INVARIANT(from + bytes <= extent.bytes);
  const Transfer transfer = next_transfer();
  queue_.start_read(file_.file(), into, bytes, extent.offset + from, transfer);
  return transfer;
}

SwapFile::Transfer SwapFile::start_write(const Extent& extent, uint64_t from, const void* data, size_t bytes) {
  if (bytes == 0) return 0;
  TESSERA_INVARIANT(from + bytes <= extent.bytes);
  const Transfer transfer = next_transfer();
  queue_.start_write(file_.file(), data, bytes, extent.offset + from, transfer);
  return transfer;
}

void SwapFile::finish(Transfer transfer) {
  while (in_flight_.contains(transfer)) in_flight_.erase(queue_.wait_one());
}

}  // namespace tessera::storage

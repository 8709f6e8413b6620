// Memory of this rank that its peers can read where it lies: blocks in one segment.
//
// Freed blocks are merged with their free neighbours and keep their pages, for the next step to use without a page
// fault, up to kKeptBytes of them. Where the segment or the host's memory has no room, a block comes from the ordinary
// allocator, with a warning the first time: it works, but collectives have to copy it.
//
// Any thread. What is allocated keeps the heap alive.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>
#include <mutex>
#include <optional>

#include "tessera/comm/shm/byte_ranges.h"
#include "tessera/comm/shm/segment.h"

namespace tessera::comm::shm {

class Heap : public std::enable_shared_from_this<Heap> {
 public:
  static constexpr size_t kKeptBytes = size_t{256} << 20;

  // Blocks lie in `segment` from `begin` (a multiple of the page size) on.
  static std::shared_ptr<Heap> make(Segment segment, size_t begin);

  // For tensors: counted by LibTorch's memory profiler. ErrorKind::kMachine where a limit of this process
  // (host_memory.h) leaves no room, since the system itself counts only private memory against those.
  c10::DataPtr allocate(size_t bytes);

  // For buffers of the exchange itself. Null where the segment has no room.
  std::optional<c10::DataPtr> try_allocate(size_t bytes);

  // Lets go of a block without ever using its bytes again: peers may still read them.
  static void leave(c10::DataPtr block);

  // Where in the segment these bytes lie, if they do.
  std::optional<size_t> offset_of(const void* data, size_t bytes) const;

  const Segment& segment() const { return segment_; }

 private:
  struct Block;

  Heap(Segment segment, size_t begin);
  static void release(void* context);
  std::optional<c10::DataPtr> make_block(size_t bytes, bool is_tensor);
  std::optional<size_t> take(size_t bytes);
  bool fill(size_t begin, size_t end);
  void check_limits(size_t bytes);
  void count(void* data, int64_t bytes);
  void give_back(size_t offset, size_t bytes);

  Segment segment_;
  int owner_;  // a fork of this process must not give memory back that its parent uses
  std::mutex mutex_;
  ByteRanges free_;
  ByteRanges filled_;  // has pages, in use or not
  size_t used_ = 0;    // bytes of tensors
  size_t kept_ = 0;    // bytes that are free and have pages
  bool warned_ = false;
};

}  // namespace tessera::comm::shm

#include "tessera/comm/shm/heap.h"

#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/host_memory.h"
#include "tessera/base/log.h"

namespace tessera::comm::shm {
namespace {

constexpr size_t kLarge = size_t{1} << 20;  // from here on, the host is asked first whether it has so much

}  // namespace

// The context of a DataPtr.
struct Heap::Block {
  std::shared_ptr<Heap> heap;
  size_t offset;
  size_t bytes;
  size_t counted;  // 0: no tensor
  bool left = false;
};

std::shared_ptr<Heap> Heap::make(Segment segment, size_t begin) {
  return std::shared_ptr<Heap>(new Heap(std::move(segment), begin));
}

Heap::Heap(Segment segment, size_t begin) : segment_(std::move(segment)), owner_(getpid()) {
  TESSERA_INVARIANT(begin == whole_pages(begin) && begin < segment_.bytes());
  free_.add(begin, segment_.bytes());
}

c10::DataPtr Heap::allocate(size_t bytes) {
  check_limits(bytes);
  if (auto data = make_block(bytes, /*is_tensor=*/true)) return std::move(*data);
  {
    const std::lock_guard lock(mutex_);
    if (!warned_) {
      log_warning("shared memory has no room for another {}: collectives will copy tensors allocated from now on",
                  format_bytes(bytes));
    }
    warned_ = true;
  }
  return c10::GetCPUAllocator()->allocate(bytes);
}

std::optional<c10::DataPtr> Heap::try_allocate(size_t bytes) { return make_block(bytes, /*is_tensor=*/false); }

std::optional<c10::DataPtr> Heap::make_block(size_t bytes, bool is_tensor) {
  const c10::Device cpu(c10::DeviceType::CPU);
  if (bytes == 0) return c10::DataPtr(nullptr, cpu);
  const size_t rounded = whole_pages(bytes);
  const auto offset = take(rounded);
  if (!offset) return std::nullopt;
  auto* const block = new Block{shared_from_this(), *offset, rounded, is_tensor ? bytes : 0};
  void* const data = segment_.data() + *offset;
  if (is_tensor) count(data, static_cast<int64_t>(bytes));
  return c10::DataPtr(data, block, &Heap::release, cpu);
}

void Heap::check_limits(size_t bytes) {
  if (bytes < kLarge) return;
  const auto left = left_of_process_limits();
  const std::lock_guard lock(mutex_);
  if (left && used_ + bytes > *left) {
    throw Error(ErrorKind::kMachine, {"cannot allocate another " + format_bytes(bytes), "a shared tensor",
                                      "use tessera estimate to see what the run needs and what would fit"});
  }
}

void Heap::count(void* data, int64_t bytes) {
  size_t used = 0;
  {
    const std::lock_guard lock(mutex_);
    used_ += static_cast<size_t>(bytes);
    used = used_;
  }
  c10::reportMemoryUsageToProfiler(data, bytes, used, segment_.bytes(), c10::Device(c10::DeviceType::CPU));
}

void Heap::release(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  Heap& heap = *block->heap;
  if (getpid() != heap.owner_) return;
  if (block->counted > 0) heap.count(heap.segment_.data() + block->offset, -static_cast<int64_t>(block->counted));
  if (!block->left) heap.give_back(block->offset, block->bytes);
}

void Heap::leave(c10::DataPtr block) {
  if (block.get_deleter() == &Heap::release) static_cast<Block*>(block.get_context())->left = true;
}

// The smallest block that is large enough, the first of those: blocks that have been used before lie first.
std::optional<size_t> Heap::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  std::optional<size_t> best;
  size_t best_bytes = 0;
  for (const auto& [begin, end] : free_.ranges()) {
    if (end - begin >= bytes && (!best || end - begin < best_bytes)) {
      best = begin;
      best_bytes = end - begin;
    }
  }
  if (!best || !fill(*best, *best + bytes)) return std::nullopt;
  free_.remove(*best, *best + bytes);
  return best;
}

// Has pages put where none are yet. False where the host has no memory for them.
bool Heap::fill(size_t begin, size_t end) {
  const auto missing = filled_.missing(begin, end);
  size_t bytes = 0;
  for (const auto& [from, to] : missing) bytes += to - from;
  if (bytes >= kLarge) {
    const uint64_t available = host_memory().available;
    if (available > 0 && bytes > available) return false;
  }
  for (const auto& [from, to] : missing) {
    if (segment_.reserve(from, to - from)) continue;
    for (const auto& [tried_from, tried_to] : missing) segment_.discard(tried_from, tried_to - tried_from);
    return false;
  }
  kept_ -= end - begin - bytes;
  filled_.add(begin, end);
  return true;
}

void Heap::give_back(size_t offset, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (kept_ + bytes <= kKeptBytes) {
    kept_ += bytes;
  } else {
    segment_.discard(offset, bytes);
    filled_.remove(offset, offset + bytes);
  }
  free_.add(offset, offset + bytes);
}

std::optional<size_t> Heap::offset_of(const void* data, size_t bytes) const {
  const auto* const at = static_cast<const std::byte*>(data);
  if (at < segment_.data() || at + bytes > segment_.data() + segment_.bytes()) return std::nullopt;
  return static_cast<size_t>(at - segment_.data());
}

}  // namespace tessera::comm::shm

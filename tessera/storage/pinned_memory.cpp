#include "tessera/storage/pinned_memory.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "tessera/base/format.h"
#include "tessera/base/host_memory.h"
#include "tessera/base/log.h"
#include "tessera/storage/pages.h"

namespace tessera::storage {
namespace {

constexpr size_t kLargestSpare = 1UL << 30;  // a piece is no larger than this for the sake of tensors to come

// From the beginning of a piece, which the allocator need not have put at a page.
size_t to_next_page(const void* address) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  return whole_pages(number) - number;
}

}  // namespace

std::shared_ptr<PinnedMemory> PinnedMemory::create(c10::DeviceType device, int64_t limit) {
  return std::shared_ptr<PinnedMemory>(new PinnedMemory(device, limit));
}

int64_t PinnedMemory::usual_limit(int ranks_of_host) {
  const uint64_t all = host_memory().limit;
  if (all == 0) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(all / 2 / static_cast<uint64_t>(std::max(1, ranks_of_host)));
}

at::Tensor PinnedMemory::empty(int64_t numel, at::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype);
  const size_t bytes = whole_pages(static_cast<size_t>(numel) * c10::elementSize(dtype));
  if (bytes == 0) return at::empty({0}, options);
  const std::shared_ptr<char> data = pages(bytes);
  if (!data) return at::empty({numel}, options);
  return at::from_blob(
      data.get(), {numel}, [data](void*) {}, options);
}

std::shared_ptr<char> PinnedMemory::pages(size_t bytes) {
  const std::optional<Block> block = take(whole_pages(bytes));
  if (!block) return nullptr;
  return {static_cast<char*>(block->slab->data.get()) + block->begin,
          [self = shared_from_this(), block = *block](char*) { self->give_back(block); }};
}

int64_t PinnedMemory::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  return pinned_;
}

int64_t PinnedMemory::pageable_bytes() const {
  const std::lock_guard lock(mutex_);
  return pageable_;
}

std::optional<PinnedMemory::Block> PinnedMemory::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto take_from = [bytes](Slab& slab) -> std::optional<Block> {
    for (const auto& [begin, length] : slab.free) {
      if (length < bytes) continue;
      const Block block{&slab, begin, bytes};
      if (length > bytes) slab.free[begin + bytes] = length - bytes;
      slab.free.erase(block.begin);
      return block;
    }
    return std::nullopt;
  };
  for (Slab& slab : slabs_) {
    if (const auto block = take_from(slab)) return block;
  }
  if (Slab* const slab = grow(bytes)) return take_from(*slab);
  pageable_ += static_cast<int64_t>(bytes);
  return std::nullopt;
}

// Pieces grow with what is pinned, so that there are few. Null where there may be no more.
PinnedMemory::Slab* PinnedMemory::grow(size_t bytes) {
  std::string why;
  const size_t needed = std::bit_ceil(bytes + kPageBytes);
  const size_t spare = std::min(std::bit_floor(static_cast<size_t>(pinned_) + 1), kLargestSpare);
  for (const size_t size : {std::max(needed, spare), needed}) {
    if (pinned_ + static_cast<int64_t>(size) > limit_) continue;
    try {
      c10::DataPtr data = at::globalContext().getPinnedMemoryAllocator(device_)->allocate(size);
      const size_t begin = to_next_page(data.get());
      pinned_ += static_cast<int64_t>(size);
      slabs_.push_back({.data = std::move(data), .bytes = size});
      slabs_.back().free[begin] = size - begin;
      return &slabs_.back();
    } catch (const c10::Error& error) {
      why = error.what_without_backtrace();
    }
  }
  if (limit_ > 0 && !std::exchange(has_warned_, true)) {
    const std::string reason = why.empty() ? "the limit is reached" : why.substr(0, why.find('\n'));
    log_warning(
        "pinned memory: {} of at most {} is taken, and {} more is not ({}): what is offloaded from now on is in "
        "pageable memory, to which a device copies more slowly",
        format_bytes(static_cast<uint64_t>(pinned_)), format_bytes(static_cast<uint64_t>(limit_)), format_bytes(needed),
        reason);
  }
  return nullptr;
}

void PinnedMemory::give_back(const Block& block) {
  const std::lock_guard lock(mutex_);
  std::map<size_t, size_t>& free = block.slab->free;
  auto place = free.emplace(block.begin, block.bytes).first;
  const auto merge = [&free](auto first, auto second) {
    if (first->first + first->second != second->first) return;
    first->second += second->second;
    free.erase(second);
  };
  if (std::next(place) != free.end()) merge(place, std::next(place));
  if (place != free.begin()) merge(std::prev(place), place);
}

}  // namespace tessera::storage

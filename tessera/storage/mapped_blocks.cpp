#include "tessera/storage/mapped_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "tessera/storage/pages.h"

namespace tessera::storage {
namespace {

// 64 sizes between a power of two and the next.
size_t rounded(size_t bytes) {
  const size_t unit = std::max(kPageBytes, std::bit_floor(bytes) / 64);
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

MappedBlocks::~MappedBlocks() { shrink_idle_to(0); }

MappedBlock MappedBlocks::take(size_t bytes) {
  const std::lock_guard guard(mutex_);
  const size_t size = rounded(bytes);
  MappedBlock block = pop_idle(size, size + size / 8);
  const size_t wanted = bytes_in_use_ + size;
  if (block.address == nullptr && bytes_idle_ > 0 && wanted + bytes_idle_ > most_in_use_)
    block = pop_twice_as_large(size);
  if (block.address == nullptr) {
    block.bytes = size;
    shrink_idle_to(most_in_use_ > wanted ? most_in_use_ - wanted : 0);
    block.address = map_pages(block.bytes);
    if (block.address == nullptr) {
      shrink_idle_to(0);
      block.address = map_pages(block.bytes);
    }
    if (block.address == nullptr) return {};
  }
  bytes_in_use_ += block.bytes;
  most_in_use_ = std::max(most_in_use_, bytes_in_use_);
  return block;
}

void MappedBlocks::give_back(MappedBlock block) {
  const std::lock_guard guard(mutex_);
  bytes_in_use_ -= block.bytes;
  bytes_idle_ += block.bytes;
  idle_[block.bytes].push_back({block.address, ++freed_, step_});
}

void MappedBlocks::end_step() {
  const std::lock_guard guard(mutex_);
  ++step_;
  for (auto size = idle_.begin(); size != idle_.end();) {
    auto& [bytes, blocks] = *size;
    const auto used_lately = [&](const Idle& block) { return step_ - block.step <= kIdleSteps; };
    const auto first_kept = std::find_if(blocks.begin(), blocks.end(), used_lately);
    for (auto block = blocks.begin(); block != first_kept; ++block) munmap(block->address, bytes);
    bytes_idle_ -= bytes * static_cast<size_t>(first_kept - blocks.begin());
    blocks.erase(blocks.begin(), first_kept);
    size = blocks.empty() ? idle_.erase(size) : std::next(size);
  }
  std::erase_if(evicting_, [&](const auto& size) { return step_ - size.second.last > kIdleSteps; });
}

void MappedBlocks::release_idle() {
  const std::lock_guard guard(mutex_);
  shrink_idle_to(0);
  most_in_use_ = bytes_in_use_;
}

size_t MappedBlocks::bytes_in_use() const {
  const std::lock_guard guard(mutex_);
  return bytes_in_use_;
}

size_t MappedBlocks::bytes_idle() const {
  const std::lock_guard guard(mutex_);
  return bytes_idle_;
}

MappedBlock MappedBlocks::pop_twice_as_large(size_t bytes) {
  if (step_ == 0) return {};
  Steps& steps = evicting_.try_emplace(bytes, Steps{step_, step_}).first->second;
  steps.last = step_;
  return step_ > steps.first ? pop_idle(bytes, 2 * bytes) : MappedBlock{};
}

MappedBlock MappedBlocks::pop_idle(size_t bytes, size_t most) {
  const auto found = idle_.lower_bound(bytes);
  if (found == idle_.end() || found->first > most) return {};
  const MappedBlock block{found->second.back().address, found->first};
  found->second.pop_back();
  if (found->second.empty()) idle_.erase(found);
  bytes_idle_ -= block.bytes;
  return block;
}

void MappedBlocks::shrink_idle_to(size_t bytes) {
  while (bytes_idle_ > bytes) {
    const auto oldest = std::min_element(idle_.begin(), idle_.end(), [](const auto& a, const auto& b) {
      return a.second.front().freed < b.second.front().freed;
    });
    auto& [size, blocks] = *oldest;
    munmap(blocks.front().address, size);
    bytes_idle_ -= size;
    blocks.erase(blocks.begin());
    if (blocks.empty()) idle_.erase(oldest);
  }
}

}  // namespace tessera::storage

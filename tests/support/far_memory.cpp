#include "tests/support/far_memory.h"

#include <ATen/ops/empty.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "tests/support/far_stream.h"

namespace tessera::test {
namespace {

constexpr size_t kAlign = 64;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// Free blocks, neighbours together.
class Pool {
 public:
  std::optional<size_t> take(size_t bytes) {
    for (auto [begin, size] : blocks_) {
      if (size < bytes) continue;
      blocks_.erase(begin);
      if (size > bytes) blocks_[begin + bytes] = size - bytes;
      return begin;
    }
    return std::nullopt;
  }

  void give(size_t begin, size_t size) {
    auto block = blocks_.emplace(begin, size).first;
    const auto merge = [this](auto first, auto second) {
      if (second == blocks_.end() || first->first + first->second != second->first) return;
      first->second += second->second;
      blocks_.erase(second);
    };
    merge(block, std::next(block));
    if (block != blocks_.begin()) merge(std::prev(block), block);
  }

  void give_all_to(Pool& other) {
    for (const auto& [begin, size] : blocks_) other.give(begin, size);
    blocks_.clear();
  }

 private:
  std::map<size_t, size_t> blocks_;  // begin, size
};

class FarMemory final : public c10::Allocator {
 public:
  FarMemory() {
    map();
    unbound_.give(0, kBytes);
  }

  void leave_parent() {
    std::vector<char> contents(near_, near_ + most_used_);
    map(MAP_FIXED);
    std::copy(contents.begin(), contents.end(), near_);
  }

  bool is_near(const void* address) const { return address >= near_ && address < near_ + kBytes; }
  void* near_of(const void* far) const { return near_ + (static_cast<const char*>(far) - far_); }
  size_t in_use() {
    const std::lock_guard lock(mutex_);
    return in_use_;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, kFarDevice};
    const c10::StreamId stream = current_far_stream();
    const size_t size = aligned(bytes);
    const std::lock_guard lock(mutex_);
    end_waits();
    std::optional<size_t> begin = of_stream_[stream].take(size);
    if (!begin) begin = unbound_.take(size);
    if (!begin) {
      drain_far_streams();
      end_waits();
      for (auto& [of, pool] : of_stream_) pool.give_all_to(unbound_);
      begin = unbound_.take(size);
    }
    TORCH_CHECK(begin, "the far device is out of memory");
    taken_[*begin] = {size, stream, {}};
    in_use_ += size;
    most_used_ = std::max(most_used_, *begin + size);
    return {far_ + *begin, far_ + *begin, &FarMemory::give_back, kFarDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &FarMemory::give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(near_of(to), near_of(from), bytes);
  }

  void keep_for(const void* far_begin, c10::StreamId stream) {
    const std::lock_guard lock(mutex_);
    const auto taken = taken_.find(offset_of(far_begin));
    if (taken != taken_.end() && stream != taken->second.stream) taken->second.users.insert(stream);
  }

 private:
  static constexpr size_t kBytes = 1UL << 30;

  struct Block {
    size_t size;
    c10::StreamId stream;  // on which it was allocated
    std::set<c10::StreamId> users;
  };
  struct Freed {
    size_t begin;
    Block block;
    std::vector<std::shared_ptr<FarMark>> marks;
  };

  void map(int flags = 0) {
    const int file = memfd_create("far device", 0);
    TORCH_CHECK(file >= 0 && ftruncate(file, kBytes) == 0);
    far_ = static_cast<char*>(mmap(far_, kBytes, PROT_NONE, MAP_SHARED | flags, file, 0));
    near_ = static_cast<char*>(mmap(near_, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, file, 0));
    close(file);
    TORCH_CHECK(far_ != MAP_FAILED && near_ != MAP_FAILED);
  }

  size_t offset_of(const void* far) const { return static_cast<size_t>(static_cast<const char*>(far) - far_); }

  static void give_back(void* address);

  void free_block(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto taken = taken_.find(offset_of(address));
    Freed freed{taken->first, taken->second, {}};
    taken_.erase(taken);
    in_use_ -= freed.block.size;
    for (const c10::StreamId user : freed.block.users) freed.marks.push_back(mark_far_stream(user));
    freed.marks.empty() ? reuse(freed) : waiting_.push_back(std::move(freed));
  }

  void end_waits() {
    std::erase_if(waiting_, [this](const Freed& freed) {
      const auto passed = [](const std::shared_ptr<FarMark>& mark) { return has_passed(mark); };
      if (!std::all_of(freed.marks.begin(), freed.marks.end(), passed)) return false;
      reuse(freed);
      return true;
    });
  }

  void reuse(const Freed& freed) {
    enqueue_far_poison(
        freed.block.stream, far_ + freed.begin, freed.block.size,
        [this, begin = freed.begin, size = freed.block.size] { std::memset(near_ + begin, 0xff, size); });
    of_stream_[freed.block.stream].give(freed.begin, freed.block.size);
  }

  std::mutex mutex_;
  char *far_ = nullptr, *near_ = nullptr;
  Pool unbound_;
  std::map<c10::StreamId, Pool> of_stream_;
  std::unordered_map<size_t, Block> taken_;  // by begin
  std::vector<Freed> waiting_;               // for streams that were recorded
  size_t in_use_ = 0, most_used_ = 0;
};

FarMemory& the_far_memory() {
  static FarMemory* const the_memory = new FarMemory;  // tensors may outlive main()
  return *the_memory;
}

void FarMemory::give_back(void* address) {
  if (address != nullptr) the_far_memory().free_block(address);
}

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, at::Device(at::kCPU)};
    void* const address = std::aligned_alloc(kAlign, aligned(bytes));
    TORCH_CHECK(address != nullptr, "no pinned memory");
    const std::lock_guard lock(mutex_);
    sizes_[static_cast<char*>(address)] = bytes;
    in_use_ += bytes;
    most_ = std::max(most_, in_use_);
    ++allocations_;
    return {address, address, &PinnedMemory::give_back, at::Device(at::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedMemory::give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool has(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto* const there = static_cast<const char*>(address);
    const auto after = sizes_.upper_bound(const_cast<char*>(there));
    return after != sizes_.begin() && there < std::prev(after)->first + std::prev(after)->second;
  }

  FarBytes bytes() {
    const std::lock_guard lock(mutex_);
    return {.in_use = 0, .pinned = in_use_, .most_pinned = most_, .pinned_allocations = allocations_};
  }

 private:
  static void give_back(void* address);

  void free_block(char* address) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = sizes_.find(address);
      forget_far_accesses(address, found->second);
      in_use_ -= found->second;
      sizes_.erase(found);
    }
    std::free(address);
  }

  std::mutex mutex_;
  std::map<char*, size_t> sizes_;
  size_t in_use_ = 0, most_ = 0;
  int64_t allocations_ = 0;
};

PinnedMemory& the_pinned_memory() {
  static PinnedMemory* const the_memory = new PinnedMemory;
  return *the_memory;
}

void PinnedMemory::give_back(void* address) {
  if (address != nullptr) the_pinned_memory().free_block(static_cast<char*>(address));
}

}  // namespace

c10::Allocator& far_memory() { return the_far_memory(); }

c10::Allocator& pinned_memory() { return the_pinned_memory(); }

void* near_of(const void* far_address) { return the_far_memory().near_of(far_address); }

bool is_near(const void* address) { return the_far_memory().is_near(address); }

bool is_pinned(const void* address) { return the_pinned_memory().has(address); }

at::Tensor near_of(const at::Tensor& far) {
  const void* const data = far.storage().data();
  const c10::Storage storage(c10::Storage::use_byte_size_t(), far.storage().nbytes(),
                             c10::DataPtr(data == nullptr ? nullptr : near_of(data), at::Device(at::kCPU)));
  return at::empty({0}, far.scalar_type()).set_(storage, far.storage_offset(), far.sizes(), far.strides());
}

void keep_for_stream(const void* far_begin, c10::StreamId stream) { the_far_memory().keep_for(far_begin, stream); }

void leave_parents_memory() { the_far_memory().leave_parent(); }

FarBytes far_bytes() {
  FarBytes bytes = the_pinned_memory().bytes();
  bytes.in_use = the_far_memory().in_use();
  return bytes;
}

}  // namespace tessera::test

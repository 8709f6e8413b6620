// Host memory from which a device copies, and to which, while both compute: locked to its pages ("pinned"), up to a
// limit, as the host can neither page it out nor use it for files.
//
// It comes from LibTorch's allocator of the device, in large pieces, because that one rounds up to powers of two and
// takes milliseconds a piece; they stay until the pool and all of its tensors are gone. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace tessera::storage {

class PinnedMemory : public std::enable_shared_from_this<PinnedMemory> {
 public:
  // `limit`: bytes; 0: nothing is pinned.
  static std::shared_ptr<PinnedMemory> create(c10::DeviceType device, int64_t limit);

  // Half of what this host, or our control group, may have, shared evenly by its ranks; where that is not known, no
  // limit.
  static int64_t usual_limit(int ranks_of_host);

  // Flat and uninitialized; begins at a page. Ordinary memory where the limit, or the system, allows no more of the
  // other; which is said once, as a warning.
  at::Tensor empty(int64_t numel, at::ScalarType dtype);

  // The same as whole pages of bytes, pinned or null.
  std::shared_ptr<char> pages(size_t bytes);

  int64_t limit() const { return limit_; }
  int64_t pinned_bytes() const;    // taken from the system, at most limit()
  int64_t pageable_bytes() const;  // of tensors that there was no room for

 private:
  struct Slab {
    c10::DataPtr data;
    size_t bytes = 0;
    std::map<size_t, size_t> free = {};  // by where it begins: how long it is
  };
  struct Block {
    Slab* slab = nullptr;
    size_t begin = 0, bytes = 0;
  };

  PinnedMemory(c10::DeviceType device, int64_t limit) : device_(device), limit_(limit) {}
  std::optional<Block> take(size_t bytes);
  Slab* grow(size_t bytes);
  void give_back(const Block& block);

  const c10::DeviceType device_;
  const int64_t limit_;
  mutable std::mutex mutex_;
  std::deque<Slab> slabs_;
  int64_t pinned_ = 0, pageable_ = 0;
  bool has_warned_ = false;
};

}  // namespace tessera::storage

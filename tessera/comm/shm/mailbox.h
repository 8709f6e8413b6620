// What a rank shows its peers: the head of its segment.
//
// A *post* says "under this tag lie bytes for you, there in my segment". The rank that posts puts the post's number
// into the ring of each peer that is to read it and rings that peer's bell; the peer reads the bytes in place, takes
// its bit out of the post and rings back. A post whose bits are all out is free again, and so are its bytes. Rings are
// written by the owner and read by one peer each, so nothing here needs a lock.
//
// A ring cannot overflow: a post stays in use until each of its readers has taken its number out.
//
// Bells: a rank that has nothing to do spins for a moment and then sleeps on its own bell (a futex), whoever it waits
// for.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "tessera/comm/shm/segment.h"

namespace tessera::comm::shm {

constexpr int kMaxRanks = 64;  // bits of Post::readers

struct alignas(64) Post {
  std::atomic<uint64_t> readers;  // ranks that have yet to read it, a bit each; 0: the post is free
  uint64_t tag;
  uint64_t offset;  // in the segment: of the first reader's part
  uint64_t stride;  // bytes from one part to the next; 0: the same for all
  uint64_t begin;   // of these bytes in the whole part of a reader
  uint64_t bytes;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

class Mailbox {
 public:
  static constexpr uint32_t kPosts = 1024;
  static size_t bytes();  // at the head of the segment, whole pages

  // `segment` must outlive the mailbox. A new segment is all zeros, which is an empty mailbox.
  explicit Mailbox(const Segment& segment) : head_(reinterpret_cast<Head*>(segment.data())) {}

  // By the owner. The number of the post; nothing when all are in use. The readers' bells are the caller's to ring.
  std::optional<uint32_t> post(uint64_t readers, uint64_t tag, uint64_t offset, uint64_t stride, uint64_t begin,
                               uint64_t bytes);
  bool is_read(uint32_t number) const { return head_->posts[number].readers.load(std::memory_order_acquire) == 0; }

  // By `reader`: the next post for it.
  std::optional<uint32_t> next_for(int reader);
  const Post& at(uint32_t number) const { return head_->posts[number]; }
  void mark_read(uint32_t number, int reader);

  // Wakes the owner.
  void ring();

  // By the owner: how often the bell has rung, and a wait until it has rung more often than `seen`.
  uint32_t rings() const { return head_->bell.load(std::memory_order_acquire); }
  void wait(uint32_t seen, std::chrono::microseconds spinning, std::chrono::milliseconds sleeping);

 private:
  struct Ring {
    alignas(64) std::atomic<uint32_t> written;
    alignas(64) std::atomic<uint32_t> taken;
    alignas(64) std::array<uint16_t, kPosts> numbers;
  };
  struct Head {
    alignas(64) std::atomic<uint32_t> bell;
    std::atomic<uint32_t> sleepers;
    std::array<Post, kPosts> posts;
    std::array<Ring, kMaxRanks> rings;
  };

  Head* head_;
  uint32_t next_ = 0;  // where the search for a free post begins
};

}  // namespace tessera::comm::shm

// The two halves of a collective in shared memory: lending bytes to peers, and borrowing theirs. Each is a small state
// machine that moves on when it can and never waits.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <unordered_map>
#include <vector>

#include "tessera/comm/shm/heap.h"
#include "tessera/comm/shm/mailbox.h"

namespace tessera::comm::shm {

// Copied at once, for all readers together; small enough for a second-level cache.
constexpr size_t kStagingBytes = 512 << 10;

// This rank's mailbox and heap, and its peers' mailboxes, as one thread at a time sees them.
class Host {
 public:
  // ErrorKind::kMachine where there is no memory even for the least that is needed.
  Host(int rank, std::shared_ptr<Heap> heap, std::vector<std::optional<Segment>> peers);
  ~Host();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(mailboxes_.size()); }
  Heap& heap() { return *heap_; }
  Mailbox& own() { return mailboxes_[static_cast<size_t>(rank_)]; }

  // A block of kStagingBytes to copy into; nothing while all are in use and there is no memory for more.
  std::optional<c10::DataPtr> staging();

  // A post and its readers' bells. `staging`, if any, comes back once they have read it.
  std::optional<uint32_t> post(uint64_t readers, uint64_t tag, uint64_t offset, uint64_t stride, uint64_t begin,
                               uint64_t bytes, c10::DataPtr staging = {});

  // The oldest post of `peer` under this tag that has not been taken.
  std::optional<uint32_t> take(int peer, uint64_t tag);
  const Post& post_of(int peer, uint32_t number) const { return mailboxes_[static_cast<size_t>(peer)].at(number); }
  const std::byte* bytes_of(int peer, uint64_t offset) const;
  void give_back(int peer, uint32_t number);

  // Fetches new posts and frees staging that has been read.
  void look_around();

 private:
  struct Staged {
    uint32_t post;
    c10::DataPtr bytes;
  };

  int rank_;
  std::shared_ptr<Heap> heap_;
  std::vector<std::optional<Segment>> peers_;
  std::vector<Mailbox> mailboxes_;
  std::vector<std::unordered_map<uint64_t, std::deque<uint32_t>>> arrived_;  // of each peer: tag → posts
  std::vector<Staged> staged_;
  std::vector<c10::DataPtr> spare_staging_;
};

// `part_bytes` for each of the `readers` (a bit each): the same for all where stride is 0; else those of parts[i] lie
// at data + i * stride.
class Lending {
 public:
  Lending(at::Tensor source, uint64_t readers, size_t part_bytes, uint64_t tag)
      : Lending(std::move(source), readers, 0, part_bytes, tag, {}) {}
  Lending(at::Tensor source, uint64_t readers, size_t stride, size_t part_bytes, uint64_t tag, std::vector<int> parts);

  bool advance(Host& host);  // true where something happened
  bool is_over() const { return over_; }
  uint64_t awaited() const;  // ranks that have yet to read; none when it is over

 private:
  void choose(Host& host);
  bool stage(Host& host);

  at::Tensor source_;
  uint64_t readers_;
  size_t stride_;
  size_t part_bytes_;
  uint64_t tag_;
  std::vector<int> parts_;  // ranks; none where all read the same
  enum class Way { kOpen, kInPlace, kStaged } way_ = Way::kOpen;
  std::optional<uint64_t> offset_;  // of the source, where it lies in the heap
  std::deque<uint32_t> posts_;
  const Mailbox* own_ = nullptr;
  size_t sent_ = 0;  // bytes of each part
  bool over_ = false;
};

// What one peer lends to this rank, piece by piece, front to back.
class Borrowing {
 public:
  // `part`: which of the peer's parts, where it lends several.
  Borrowing(int peer, int part, size_t bytes, uint64_t tag) : peer_(peer), part_(part), bytes_(bytes), tag_(tag) {}

  int peer() const { return peer_; }
  bool is_over() const { return done_ == bytes_; }
  size_t done() const { return done_; }

  // Bytes that may be read now, from done() on; 0: nothing is there yet.
  size_t available(Host& host);
  const std::byte* data(Host& host) const;
  void consume(Host& host, size_t bytes);

 private:
  int peer_;
  int part_;
  size_t bytes_;
  uint64_t tag_;
  size_t done_ = 0;
  std::optional<uint32_t> post_;
};

}  // namespace tessera::comm::shm

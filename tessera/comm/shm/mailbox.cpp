#include "tessera/comm/shm/mailbox.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <climits>

namespace tessera::comm::shm {
namespace {

// Between processes, so not the private kind.
void sleep_while(std::atomic<uint32_t>& word, uint32_t value, std::chrono::milliseconds limit) {
  const timespec time{.tv_sec = limit.count() / 1000, .tv_nsec = limit.count() % 1000 * 1'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

size_t Mailbox::bytes() { return whole_pages(sizeof(Head)); }

std::optional<uint32_t> Mailbox::post(uint64_t readers, uint64_t tag, uint64_t offset, uint64_t stride, uint64_t begin,
                                      uint64_t bytes) {
  for (uint32_t tried = 0; tried < kPosts; ++tried) {
    const uint32_t number = (next_ + tried) % kPosts;
    Post& post = head_->posts[number];
    if (post.readers.load(std::memory_order_acquire) != 0) continue;
    next_ = number + 1;
    post.tag = tag;
    post.offset = offset;
    post.stride = stride;
    post.begin = begin;
    post.bytes = bytes;
    post.readers.store(readers, std::memory_order_relaxed);
    for (uint64_t left = readers; left != 0; left &= left - 1) {
      Ring& ring = head_->rings[static_cast<size_t>(std::countr_zero(left))];
      const uint32_t written = ring.written.load(std::memory_order_relaxed);
      ring.numbers[written % kPosts] = static_cast<uint16_t>(number);
      ring.written.store(written + 1, std::memory_order_release);
    }
    return number;
  }
  return std::nullopt;
}

std::optional<uint32_t> Mailbox::next_for(int reader) {
  Ring& ring = head_->rings[static_cast<size_t>(reader)];
  const uint32_t taken = ring.taken.load(std::memory_order_relaxed);
  if (ring.written.load(std::memory_order_acquire) == taken) return std::nullopt;
  const uint32_t number = ring.numbers[taken % kPosts];
  ring.taken.store(taken + 1, std::memory_order_release);
  return number;
}

void Mailbox::mark_read(uint32_t number, int reader) {
  head_->posts[number].readers.fetch_and(~(uint64_t{1} << reader), std::memory_order_acq_rel);
}

// Both sides first write and then read, in one total order (seq_cst): either the sleeper sees the new count, or the
// ringer sees the sleeper.
void Mailbox::ring() {
  head_->bell.fetch_add(1);
  if (head_->sleepers.load() != 0) wake_all(head_->bell);
}

void Mailbox::wait(uint32_t seen, std::chrono::microseconds spinning, std::chrono::milliseconds sleeping) {
  const auto end = std::chrono::steady_clock::now() + spinning;
  while (spinning.count() > 0 && std::chrono::steady_clock::now() < end) {
    for (int turn = 0; turn < 64; ++turn) {
      if (rings() != seen) return;
      pause_briefly();
    }
  }
  head_->sleepers.fetch_add(1);
  if (head_->bell.load() == seen) sleep_while(head_->bell, seen, sleeping);
  head_->sleepers.fetch_sub(1);
}

}  // namespace tessera::comm::shm

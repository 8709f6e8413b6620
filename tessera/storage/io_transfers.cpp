#include "tessera/storage/io_transfers.h"

#include <algorithm>
#include <cerrno>

#include "tessera/base/trace.h"

namespace tessera::storage {

void IoTransfers::add(IoTransfer transfer) {
  const std::lock_guard lock(mutex_);
  auto shared = std::make_shared<IoTransfer>(transfer);
  shared->begin = std::chrono::steady_clock::now();
  if (shared->bytes == 0) {
    ended_.push_back(std::move(shared));
    return;
  }
  waiting_.push_back(std::move(shared));
  added_.notify_all();
}

std::optional<IoTransfer> IoTransfers::wait_ended(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  while (ended_.empty()) {
    const uint64_t before = ended_requests_;
    const bool ended = ended_one_.wait_for(lock, timeout, [this] { return !ended_.empty(); });
    if (!ended && ended_requests_ == before) return std::nullopt;
  }
  const IoTransfer transfer = *ended_.front();
  ended_.pop_front();
  return transfer;
}

void IoTransfers::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  waiting_.clear();
}

void IoTransfers::take_locked(size_t most, std::vector<IoRequest>& into) {
  while (most > 0 && !waiting_.empty()) {
    const std::shared_ptr<IoTransfer> transfer = waiting_.front();
    const size_t blocks = (transfer->bytes - transfer->taken + block_bytes_ - 1) / block_bytes_;
    const size_t share = std::min(most, (blocks + takers_ - 1) / takers_);
    for (size_t i = 0; i < share; ++i) {
      const size_t bytes = std::min(block_bytes_, transfer->bytes - transfer->taken);
      into.push_back({.transfer = transfer, .begin = transfer->taken, .bytes = bytes});
      transfer->taken += bytes;
      ++transfer->unfinished;
    }
    most -= share;
    if (transfer->taken < transfer->bytes) return;
    waiting_.pop_front();
  }
}

void IoTransfers::take(size_t most, std::vector<IoRequest>& into) {
  const std::lock_guard lock(mutex_);
  take_locked(most, into);
}

std::optional<IoRequest> IoTransfers::wait_for_one() {
  std::unique_lock lock(mutex_);
  added_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
  std::vector<IoRequest> taken;
  take_locked(1, taken);
  return taken.empty() ? std::nullopt : std::optional(taken.front());
}

void IoTransfers::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  added_.notify_all();
}

bool IoTransfers::end(IoRequest& request, int64_t result) {
  if (abandoned_) return true;
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result > 0) {
    request.ended += static_cast<size_t>(result);
    if (request.left() > 0) return false;
  }
  IoTransfer& transfer = *request.transfer;
  int error = result < 0 ? static_cast<int>(-result) : 0;
  // With O_DIRECT what is left after a short request may begin in the middle of a page, which the kernel calls invalid.
  const bool none = result == 0 || (error == EINVAL && request.ended > 0);
  if (none) error = transfer.writes ? ENOSPC : IoTransfer::kEndOfFile;

  const std::lock_guard lock(mutex_);
  ++ended_requests_;
  --transfer.unfinished;
  if (error != 0 && transfer.error == 0) {
    transfer.error = error;
    std::erase(waiting_, request.transfer);
    transfer.taken = transfer.bytes;
  }
  if (transfer.unfinished == 0 && transfer.taken == transfer.bytes) {
    if (tracing()) {
      trace({TraceLane::kIo, transfer.writes ? "write" : "read", transfer.begin, std::chrono::steady_clock::now(),
             static_cast<int64_t>(transfer.bytes)});
    }
    ended_.push_back(request.transfer);
    ended_one_.notify_one();
  }
  return true;
}

}  // namespace tessera::storage

// The transfers of an IoQueue, cut into requests: which part of which is to be started next, and which have ended.
// Stands between the queue's user and the threads that do the work (io_worker.h); any thread may call anything.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tessera/storage/io_queue.h"

namespace tessera::storage {

struct IoTransfer {
  static constexpr int kEndOfFile = -1;

  const IoFile* file = nullptr;
  bool writes = false;
  char* data = nullptr;
  size_t bytes = 0;
  uint64_t offset = 0;
  size_t tag = 0;

  size_t taken = 0;    // bytes that requests were made of
  int unfinished = 0;  // requests
  int error = 0;       // errno, or kEndOfFile, of the first request that failed; no more are made then

  std::chrono::steady_clock::time_point begin{};  // when it was given
};

// A part of a transfer. `ended` of its bytes are done.
struct IoRequest {
  std::shared_ptr<IoTransfer> transfer;
  size_t begin = 0;  // in the transfer
  size_t bytes = 0;
  size_t ended = 0;

  int fd() const { return transfer->file->fd; }
  char* data() const { return transfer->data + begin + ended; }
  uint64_t offset() const { return transfer->offset + begin + ended; }
  size_t left() const { return bytes - ended; }
};

class IoTransfers {
 public:
  IoTransfers(size_t block_bytes, int takers) : block_bytes_(block_bytes), takers_(takers) {}

  void add(IoTransfer transfer);

  // Waits for one that has ended; nothing when no request of any has ended for `timeout`.
  std::optional<IoTransfer> wait_ended(std::chrono::milliseconds timeout);

  // The disk is not waited for any longer: no request begins any more, and none is continued.
  void abandon();

  // Appends up to `most` requests. Leaves the other takers their share of each transfer.
  void take(size_t most, std::vector<IoRequest>& into);

  // Waits for one; nothing after stop().
  std::optional<IoRequest> wait_for_one();
  void stop();

  // `result` is that of pread or pwrite, or a negative errno. False: submit the request, which has become shorter,
  // again.
  bool end(IoRequest& request, int64_t result);

 private:
  void take_locked(size_t most, std::vector<IoRequest>& into);

  const size_t block_bytes_;
  const int takers_;
  std::mutex mutex_;
  std::condition_variable added_, ended_one_;
  std::deque<std::shared_ptr<IoTransfer>> waiting_;  // not all of it taken
  std::deque<std::shared_ptr<IoTransfer>> ended_;
  uint64_t ended_requests_ = 0;
  bool stopping_ = false;
  std::atomic<bool> abandoned_ = false;
};

}  // namespace tessera::storage

// File reads and writes that run in the background: on io_uring, or with blocking calls where the kernel refuses it
// (containers often do; TESSERA_IO=threads asks for them).
//
//   IoQueue queue({.block_bytes = 1 << 20, .depth = 32});
//   queue.start_write(file, data, bytes, offset, /*tag=*/3);    // returns at once
//   …
//   while (queue.in_flight() > 0) queue.wait_one();             // the tag of one that has ended, once for each start
//
// Transfers of any size; they begin in the order of their starts and may end in another. Each is cut into requests of
// `block_bytes`, which threads of the queue's own hand to the kernel. Short requests are continued; a read beyond the
// end of the file, or any errno, is an exception from wait_one(), one for each transfer that failed:
// ErrorKind::kMachine with errno and path. So is a disk that completes nothing for IoOptions::timeout; after that the
// queue no longer waits for anything. File and memory are borrowed until the transfer has ended, which the destructor
// waits for. For files opened with O_DIRECT memory, bytes and offset are multiples of kPageBytes. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/storage/io_options.h"

namespace tessera::storage {

struct IoTransfer;
class IoTransfers;
class IoWorker;

struct IoFile {
  int fd = -1;
  std::string path;  // for messages
};

class IoQueue {
 public:
  explicit IoQueue(const IoOptions& options = {});
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  void start_write(const IoFile& file, const void* data, size_t bytes, uint64_t offset, size_t tag = 0);
  void start_read(const IoFile& file, void* data, size_t bytes, uint64_t offset, size_t tag = 0);

  size_t wait_one();
  void wait_all();
  void drain() noexcept;                        // wait_all() where failures no longer matter
  int in_flight() const { return in_flight_; }  // transfers

  const char* engine() const;  // "io_uring" or "threads"

 private:
  void start(bool writes, const IoFile& file, char* data, size_t bytes, uint64_t offset, size_t tag);
  IoTransfer wait_ended();

  const std::chrono::milliseconds timeout_;
  const IoFile* latest_ = nullptr;  // of the transfers in flight
  int in_flight_ = 0;
  bool abandoned_ = false;
  std::unique_ptr<IoTransfers> transfers_;
  std::unique_ptr<IoWorker> worker_;
};

}  // namespace tessera::storage

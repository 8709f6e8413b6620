// Reads and writes of files, several in flight: on io_uring, or on threads of our own where the kernel refuses it
// (containers often do; TESSERA_IO=threads asks for them).
//
//   queue.start_write(fd, data, bytes, offset, /*tag=*/3);      // returns at once, unless `depth` are in flight
//   …
//   while (queue.in_flight() > 0) queue.wait_one();             // the tag of one that has ended
//
// Short transfers are continued; a read beyond the end of the file, or any errno, is an exception from wait_one() or
// from a start that had to wait: ErrorKind::kMachine with errno and path. Memory is borrowed until its operation has
// ended; the destructor waits for all. For files opened with O_DIRECT memory, bytes and offset are multiples of
// kPageBytes. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::storage {

struct IoFile {
  int fd = -1;
  std::string path;  // for messages
};

class IoQueue {
 public:
  static constexpr int kDefaultDepth = 8;

  explicit IoQueue(int depth = kDefaultDepth);
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  // `file` outlives the operation.
  void start_write(const IoFile& file, const void* data, size_t bytes, uint64_t offset, size_t tag = 0);
  void start_read(const IoFile& file, void* data, size_t bytes, uint64_t offset, size_t tag = 0);

  size_t wait_one();
  void wait_all();
  int in_flight() const { return in_flight_; }

  const char* engine() const;  // "io_uring" or "threads"

 private:
  struct Operation;
  class Engine;
  class Uring;
  class Threads;

  void start(Operation operation);

  int depth_;
  int in_flight_ = 0;
  std::vector<Operation> operations_;  // slots, `depth` of them
  std::vector<size_t> free_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace tessera::storage

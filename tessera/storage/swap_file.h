// Room on a disk for training state that does not fit into memory: one unnamed file per rank (scratch_file.h). So
// nothing is left behind however the process ends, and runs that share a folder never collide.
//
//   SwapFile file("/nvme", io_options_of(config.aio), "zero_optimization.offload_param.nvme_path");
//   const Extent extent = file.allocate(bytes);                       // reserved at once; zeros until written
//   const auto reading = file.start_read(extent, 0, buffer.data(), bytes);   // returns at once
//   …
//   file.finish(reading);                                              // `buffer` is filled
//
// Memory, offsets and sizes are multiples of kPageBytes (AlignedBuffer), because the file bypasses the page cache
// (O_DIRECT) where the file system allows it. Memory is borrowed until finish() returns. Reads and writes that touch
// the same bytes must not be in flight together.
//
// Errors: ErrorKind::kMachine with errno and path: the folder is missing or read-only, the disk is full (from
// allocate), a transfer failed (from any call; the file is unusable afterwards). One thread at a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "tessera/storage/io_queue.h"
#include "tessera/storage/scratch_file.h"

namespace tessera::storage {

struct Extent {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

class SwapFile {
 public:
  using Transfer = size_t;  // 0: nothing is in flight

  // `named_by`: the option or key that gave the folder, for messages.
  SwapFile(const std::string& folder, const IoOptions& options, const std::string& named_by)
      : file_(folder, named_by), queue_(options) {}
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  // At least `bytes`, rounded up to pages.
  Extent allocate(uint64_t bytes);

  Transfer start_read(const Extent& extent, uint64_t from, void* into, size_t bytes);
  Transfer start_write(const Extent& extent, uint64_t from, const void* data, size_t bytes);
  void finish(Transfer transfer);

  uint64_t bytes() const { return end_; }  // allocated so far
  const std::string& folder() const { return file_.file().path; }
  bool is_direct() const { return file_.is_direct(); }
  const char* engine() const { return queue_.engine(); }

 private:
  Transfer next_transfer();

  ScratchFile file_;
  uint64_t end_ = 0;
  Transfer last_ = 0;
  std::set<Transfer> in_flight_;
  IoQueue queue_;  // goes first: it waits for what is in flight
};

}  // namespace tessera::storage

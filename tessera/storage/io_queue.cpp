#include "tessera/storage/io_queue.h"

#include <fmt/format.h>

#include <cerrno>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/storage/aligned_buffer.h"
#include "tessera/storage/io_transfers.h"
#include "tessera/storage/io_worker.h"

namespace tessera::storage {
namespace {

std::unique_ptr<IoWorker> make_worker(IoTransfers& transfers, const IoOptions& options) {
  std::unique_ptr<IoWorker> worker;
  if (env_choice("TESSERA_IO", {"io_uring", "threads"}) != "threads") worker = make_uring_worker(transfers, options);
  return worker ? std::move(worker) : make_blocking_worker(transfers, options);
}

[[noreturn]] void throw_failure(const IoTransfer& transfer) {
  const std::string& path = transfer.file->path;
  if (transfer.writes) {
    throw Error(ErrorKind::kMachine,
                {"writing failed: " + errno_text(transfer.error), path, "free some space or choose another folder"});
  }
  const std::string why = transfer.error == IoTransfer::kEndOfFile
                              ? fmt::format("it ends before byte {}", transfer.offset + transfer.bytes)
                              : errno_text(transfer.error);
  throw Error(ErrorKind::kMachine, {"reading failed: " + why, path, "check the disk, or use another copy of the file"});
}

}  // namespace

IoQueue::IoQueue(const IoOptions& options) : timeout_(options.timeout) {
  TESSERA_INVARIANT(options.block_bytes > 0 && options.depth > 0 && options.threads > 0);
  const size_t block_bytes = whole_pages(options.block_bytes);
  transfers_ = std::make_unique<IoTransfers>(block_bytes, options.threads);
  worker_ = make_worker(*transfers_, options);
}

IoQueue::~IoQueue() {
  drain();
  if (!abandoned_) return;
  // Its threads may stand in the kernel for ever: they are left there, with what they use.
  static_cast<void>(worker_.release());
  static_cast<void>(transfers_.release());
}

const char* IoQueue::engine() const { return worker_->engine(); }

void IoQueue::start(bool writes, const IoFile& file, char* data, size_t bytes, uint64_t offset, size_t tag) {
  transfers_->add({.file = &file, .writes = writes, .data = data, .bytes = bytes, .offset = offset, .tag = tag});
  worker_->wake();
  latest_ = &file;
  ++in_flight_;
}

void IoQueue::start_write(const IoFile& file, const void* data, size_t bytes, uint64_t offset, size_t tag) {
  start(true, file, const_cast<char*>(static_cast<const char*>(data)), bytes, offset, tag);
}

void IoQueue::start_read(const IoFile& file, void* data, size_t bytes, uint64_t offset, size_t tag) {
  start(false, file, static_cast<char*>(data), bytes, offset, tag);
}

IoTransfer IoQueue::wait_ended() {
  if (!abandoned_) {
    if (const auto transfer = transfers_->wait_ended(timeout_)) {
      --in_flight_;
      return *transfer;
    }
    abandoned_ = true;
    transfers_->abandon();
  }
  throw Error(ErrorKind::kMachine,
              {"the disk has not answered for " + format_duration(timeout_), latest_->path,
               "look for its errors in the kernel log (dmesg), or choose a folder on another disk"});
}

size_t IoQueue::wait_one() {
  TESSERA_INVARIANT(in_flight_ > 0);
  const IoTransfer transfer = wait_ended();
  if (transfer.error != 0) throw_failure(transfer);
  return transfer.tag;
}

void IoQueue::wait_all() {
  while (in_flight_ > 0) wait_one();
}

void IoQueue::drain() noexcept {
  try {
    while (in_flight_ > 0 && !abandoned_) wait_ended();
  } catch (const Error&) {  // out of time
  }
}

}  // namespace tessera::storage

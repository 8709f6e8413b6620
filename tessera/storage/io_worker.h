// Who carries out the requests of an IoQueue: threads that submit them to an io_uring each, or threads that read and
// write one request at a time with pread and pwrite. Both start with the first transfer. Private to storage/.
#pragma once

#include <memory>

#include "tessera/storage/io_options.h"
#include "tessera/storage/io_transfers.h"

namespace tessera::storage {

class IoWorker {
 public:
  virtual ~IoWorker() = default;  // once all transfers have ended
  virtual const char* engine() const = 0;
  virtual void wake() = 0;  // after IoTransfers::add
};

// Null where the kernel has no io_uring or forbids it.
std::unique_ptr<IoWorker> make_uring_worker(IoTransfers& transfers, const IoOptions& options);

// As many threads as requests may be in flight, 16 at most. There is nothing to submit, so single_submit and
// overlap_events change nothing.
std::unique_ptr<IoWorker> make_blocking_worker(IoTransfers& transfers, const IoOptions& options);

}  // namespace tessera::storage

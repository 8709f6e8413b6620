// How files are read and written: the ds_config's block `aio`, with DeepSpeed's defaults.
#pragma once

#include <cstddef>

#include "tessera/config/ds_config.h"

namespace tessera::storage {

struct IoOptions {
  size_t block_bytes = 1 << 20;  // of one request; rounded up to whole pages. Larger transfers become several requests
  int depth = 8;                 // requests in flight, of each thread
  int threads = 1;               // that share the requests of a transfer, each with a queue of its own
  bool single_submit = false;    // hand requests to the kernel one by one instead of in batches
  bool overlap_events = true;    // start requests as others end; false: wait until all in flight have ended
};

inline IoOptions io_options_of(const config::AioOptions& aio) {
  return {.block_bytes = static_cast<size_t>(aio.block_bytes),
          .depth = aio.queue_depth,
          .threads = aio.intra_op_parallelism,
          .single_submit = aio.single_submit,
          .overlap_events = aio.overlap_events};
}

}  // namespace tessera::storage

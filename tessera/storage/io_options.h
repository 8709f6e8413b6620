// How files are read and written: the ds_config's block `aio`, with DeepSpeed's defaults.
#pragma once

#include <chrono>
#include <cstddef>

namespace tessera::config {
struct AioOptions;
}

namespace tessera::storage {

struct IoOptions {
  size_t block_bytes = 1 << 20;  // of one request; rounded up to whole pages. Larger transfers become several requests
  int depth = 8;                 // requests in flight, of each thread
  int threads = 1;               // that share the requests of a transfer, each with a queue of its own
  bool single_submit = false;    // hand requests to the kernel one by one instead of in batches
  bool overlap_events = true;    // start requests as others end; false: wait until all in flight have ended

  std::chrono::milliseconds timeout =
      std::chrono::minutes(10);  // without the end of any request, when it is waited for
};

IoOptions io_options_of(const config::AioOptions& aio);

}  // namespace tessera::storage

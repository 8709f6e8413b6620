#include "tessera/storage/io_options.h"

#include "tessera/config/ds_config.h"

namespace tessera::storage {

IoOptions io_options_of(const config::AioOptions& aio) {
  return {.block_bytes = static_cast<size_t>(aio.block_bytes),
          .depth = aio.queue_depth,
          .threads = aio.intra_op_parallelism,
          .single_submit = aio.single_submit,
          .overlap_events = aio.overlap_events};
}

}  // namespace tessera::storage

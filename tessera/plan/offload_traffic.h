// What of the training state an offload takes out of the device's memory, unit by unit as zero/ does it, and the host
// memory through which it comes from NVMe and goes back:
//
//   tiles       of the optimizer's step: each slot's buffers grow to the largest tile that uses them (state_tiles.h)
//   gradients   of two units, on their way to the disk (gradient_reducer.h)
//   parameters  shards on their way from the disk: one in use, those of blocks ahead of it (storage/buffer_pool.h)
//
// Of one rank; padding left out. Arithmetic only.
#pragma once

#include <cstdint>

#include "tessera/plan/memory_model.h"

namespace tessera::plan {

struct OffloadTraffic {
  int64_t optimizer_numel = 0;  // elements whose master weights, state and sharded gradients are offloaded
  int64_t params_bytes = 0;     // of the compute weights that rest on NVMe

  // Of buffers in host memory.
  int64_t tile_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t param_bytes = 0;
};

OffloadTraffic offload_traffic(const ModelCensus& model, const TrainingSetup& setup);

}  // namespace tessera::plan

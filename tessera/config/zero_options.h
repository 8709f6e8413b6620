// What a ds_config says of ZeRO: the block `zero_optimization` by DeepSpeed's own names, without the prefix stage3_.
// The engine's parts and the planner read these structs as they are, so a new key is an entry of the table
// (ds_keys.cpp), a field here, and its reader. Defaults for users are the table's; those here switch everything off.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace tessera::config {

// Of optimizer state, or of parameters.
struct OffloadOptions {
  std::string device = "none";  // none, cpu or nvme
  std::string nvme_path;        // empty when not given
  bool pin_memory = true;
  int64_t buffer_count = 0;     // through which tensors come from NVMe and go back
  double ratio = 1;             // of the optimizer: the share of the model's elements that is offloaded, the first ones
  bool pipeline_read = false;   // of the optimizer: read the next part while one is updated
  bool pipeline_write = false;  // … and write the last one
  int64_t max_in_cpu = 0;       // of parameters on NVMe: elements of this rank's shards that stay in host memory
};

// How gradients are reduced; only speed and memory depend on it.
struct ReductionOptions {
  bool overlap_comm = true;    // reduce while backward goes on; false: wait for each reduction at once
  bool reduce_scatter = true;  // each rank receives its shard; false: the whole, of which it keeps its shard
  int64_t reduce_bucket_size = std::numeric_limits<int64_t>::max();  // elements that one reduction moves at most
};

// Stage 3: which units are unsharded beside those in use. In elements of whole units; only speed and memory depend on
// it.
struct ResidencyOptions {
  int64_t max_live_parameters = 0;          // unsharded at a time; others are evicted for more, used last first
  int64_t prefetch_bucket_size = 0;         // … gathered, or read from NVMe, before they are needed
  int64_t max_reuse_distance = 0;           // stays unsharded where fewer are used until it is used again in this pass
  int64_t param_persistence_threshold = 0;  // a unit no larger stays unsharded until a step changes it, …
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();  // … while these together are no more
};

// ZeRO++, at stage 3.
struct TrafficOptions {
  int64_t zero_hpz_partition_size = 1;  // consecutive ranks that hold the parameters between them; 0, 1: all do
  bool quantized_weights = false;
  bool quantized_gradients = false;
};

struct ZeroOptions {
  int stage = 0;  // 0: nothing is sharded; 1: optimizer state; 2: and gradients; 3: and parameters
  OffloadOptions offload_optimizer;
  OffloadOptions offload_param;
  ReductionOptions reduction;
  ResidencyOptions residency;
  TrafficOptions traffic;
  int64_t sub_group_size = std::numeric_limits<int64_t>::max();  // elements that an offloaded update takes at a time
  bool ignore_unused_parameters = true;  // false: a parameter without a gradient is an error in the step
};

}  // namespace tessera::config

// What is sharded, where it rests, in which dtypes a model trains, and how its gradients are averaged. A stage of ZeRO
// (Rajbhandari et al. 2020) is nothing but such a policy over one layout:
//
//   stage   optimizer state   gradients   parameters        bytes a parameter, mixed precision, N ranks
//     0     whole             whole       whole             2 + 2 + 12
//     1     shard             whole       whole             2 + 2 + 12/N
//     2     shard             shard       whole             2 + 14/N
//     3     shard             shard       shard             16/N
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "tessera/storage/buffer_pool.h"
#include "tessera/storage/swap_file.h"

namespace tessera::zero {

// How the gradients of N ranks become one: sum over ranks of (gradient * before), then * after. In exact arithmetic
// before * after is 1/N for the mean; they differ in what the dtype that travels can hold.
struct Averaging {
  at::ScalarType dtype = at::kFloat;  // in which gradients travel and are rounded once they are summed
  double before = 1;
  double after = 1;
  bool overlap = true;                 // reduce while backward goes on; false: wait for each reduction at once
  bool scatter = true;                 // each rank receives its shard; false: the whole, of which it keeps its shard
  int64_t bucket_numel = 500'000'000;  // largest number of elements that one reduction moves
};

// What rests on a disk between its uses (ZeRO-Infinity, Rajbhandari et al. 2021), and how it comes and goes; or, where
// a model trains on a device, in the host's memory (ZeRO-Offload, Ren et al. 2021). The files and buffers are this
// rank's; units share them.
struct Offload {
  std::shared_ptr<storage::SwapFile> optimizer;   // of master weights, states and sharded gradients; null: in memory
  double optimizer_share = 1;                     // of the model's elements, the first ones; the rest stays in memory
  bool optimizer_on_host = false;                 // what would lie in that file, where there is none
  std::shared_ptr<storage::SwapFile> parameters;  // of sharded compute weights; null: in memory
  bool parameters_on_host = false;                // … as above
  int64_t parameters_in_memory = 0;               // elements of this rank's shards that stay in memory all the same

  int64_t tile_numel = 8 << 20;  // elements that an update holds in memory at a time, where it may be cut
  bool reads_ahead = false;      // the next tile comes in while one is updated
  bool writes_behind = false;    // … and the last one goes out
  int64_t tile_buffers = 0;      // at least so many buffers of a tile's size
  std::shared_ptr<storage::BufferPool> fetches;  // through which shards of parameters come in
};

// Stage 3: which units are whole beside those in use. All in elements of whole units; only the speed depends on it.
struct Gathering {
  int64_t most_numel = 0;         // whole at a time, those in use counted: others make room for them, last used first
  int64_t ahead_numel = 0;        // … gathered, or brought in from the disk, before they are needed
  int64_t reuse_numel = 0;        // stays whole where fewer are used until it is used again in this pass
  int64_t persistent_numel = -1;  // a unit no larger stays whole until a step changes it, …
  int64_t all_persistent_numel = std::numeric_limits<int64_t>::max();  // … as long as these together are no more
};

struct Policy {
  std::optional<at::Device> device = {};  // where the model trains; nothing: where each parameter is
  bool shard_optimizer = false;
  bool shard_gradients = false;
  bool shard_parameters = false;
  at::ScalarType compute_dtype = at::kFloat;
  at::ScalarType master_dtype = at::kFloat;  // of the weights that the optimizer updates
  at::ScalarType state_dtype = at::kFloat;   // of what the optimizer keeps for each weight
  at::ScalarType grad_dtype = at::kFloat;    // in which gradients add up over micro batches
  Averaging averaging;
  Gathering gathering;
  Offload offload;
  bool publishes_lazily = false;  // new weights arrive as forwards need them; false: before the step ends
  bool refuses_unused = false;    // a step is an error where a trainable parameter had no gradient on some rank

  // What DeepSpeed's programs look for: a sharded parameter of size 0, and an undefined gradient once it is taken.
  // Otherwise both keep their shape. Whoever reads a sharded parameter, or a gradient that is there to be seen but
  // taken, is told so (unreadable.h).
  bool placeholders_as_deepspeed = false;

  // Master weights beside the compute weights; in one dtype the compute weights are the master.
  bool has_master() const { return compute_dtype != master_dtype; }
};

// Everything in the compute dtype but master weights and state, and the mean over `ranks`.
inline Policy policy_of_stage(int stage, at::ScalarType compute_dtype, int ranks) {
  return {.shard_optimizer = stage >= 1,
          .shard_gradients = stage >= 2,
          .shard_parameters = stage >= 3,
          .compute_dtype = compute_dtype,
          .grad_dtype = compute_dtype,
          .averaging = {.dtype = compute_dtype, .after = 1.0 / ranks},
          .gathering = {},
          .offload = {}};
}

}  // namespace tessera::zero

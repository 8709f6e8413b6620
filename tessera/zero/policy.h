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
#include <ATen/ops/empty.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "tessera/config/zero_options.h"
#include "tessera/storage/buffer_pool.h"
#include "tessera/storage/host_link.h"
#include "tessera/storage/swap_file.h"

namespace tessera::zero {

// How the gradients of N ranks become one: sum over ranks of (gradient * before), then * after. In exact arithmetic
// before * after is 1/N for the mean; they differ in what the dtype that travels can hold.
struct Averaging {
  at::ScalarType dtype = at::kFloat;  // in which gradients travel and are rounded once they are summed
  double before = 1;
  double after = 1;
};

// What rests on a disk between its uses (ZeRO-Infinity, Rajbhandari et al. 2021), and how it comes and goes; or, where
// a model trains on a device, in the host's memory (ZeRO-Offload, Ren et al. 2021). The files and buffers are this
// rank's; units share them.
struct Offload {
  std::shared_ptr<storage::SwapFile> optimizer;   // of master weights, states and sharded gradients; null: in memory
  bool optimizer_on_host = false;                 // what would lie in that file, where there is none
  std::shared_ptr<storage::SwapFile> parameters;  // of sharded compute weights; null: in memory
  bool parameters_on_host = false;                // … as above
  std::shared_ptr<storage::BufferPool> fetches;   // through which shards of parameters come in
  std::shared_ptr<storage::HostLink> link;  // how all of it comes and goes; null where the host's memory is the model's
  std::shared_ptr<storage::PinnedMemory> pinned;  // for copies of a device, offloaded or not; null where there is none

  config::OffloadOptions optimizer_options, param_options;
  int64_t sub_group_size = std::numeric_limits<int64_t>::max();  // elements; see largest_tile in state_tiles.h

  // Memory of the host for what rests there, flat and uninitialized: pinned if those options say so.
  at::Tensor on_host(const config::OffloadOptions& options, int64_t numel, at::ScalarType dtype) const {
    return options.pin_memory ? link->memory().empty(numel, dtype) : at::empty({numel}, at::TensorOptions(dtype));
  }
};

// Stage 3: less on the network (ZeRO++, Wang et al. 2023; gather_source.h, quantized_reduction.h).
struct Traffic {
  int inner_ranks = 0;               // see DataGroups::of
  bool secondary_shards = false;     // hpZ: parameters are gathered within the inner group
  bool quantized_weights = false;    // qwZ: … in 8 bits
  bool quantized_gradients = false;  // qgZ: gradients are reduced in 8 bits within it, and in 4 over the outer group
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
  config::ReductionOptions reduction;
  config::ResidencyOptions residency;
  Offload offload;
  Traffic traffic = {};
  bool publishes_lazily = false;  // new weights arrive as forwards need them; false: before the step ends
  bool refuses_unused = false;    // a step is an error where a trainable parameter had no gradient on some rank

  // What DeepSpeed's programs look for: a sharded parameter of size 0, and an undefined gradient once it is taken.
  // Otherwise both keep their shape. Whoever reads a sharded parameter, or a gradient that is there to be seen but
  // taken, is told so (unreadable.h). And small parameters that are readable at any time (persistent_params.h).
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
          .reduction = {},
          .residency = {},
          .offload = {}};
}

}  // namespace tessera::zero

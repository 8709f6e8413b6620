// How many bytes a rank needs to train: what stays between steps, what a step adds to it, and where each part lies.
//
//   stays   parameters, gradients, master weights, optimizer state: zero/policy.h's table, 16 bytes a parameter in
//           mixed precision, of which stage 1 divides 12 by the ranks, stage 2 14, stage 3 16. Offload moves parts of
//           it:
//             optimizer   master weights, optimizer state; at stages 2 and 3 gradient shards too: of the first units,
//                         which hold optimizer_ratio of the elements
//             parameters  the shards of stage 3, but the first max_in_cpu elements of an NVMe offload
//   a step  the largest of three moments, each as a sum of blocks (memory_model.cpp says which):
//             the head's backward, when all activations wait · the last block's backward · the embeddings' gradient
//
// Activations. Of a transformer, by the sizes of its Architecture: what each operation of a block saves for backward,
// tensor by tensor, as Korthikanti et al. 2022, section 4.1 count it, but for attention in one kernel where its dropout
// is 0, which keeps no scores. With activation checkpointing: each block's input, and one block's activations. Over
// tensor ranks, as in section 4.2.2, but that what goes into a cut layer is kept whole (nn/own_tokens.h): it is not
// gathered again for backward.
//
// On a CPU the device's memory is the host's. docs/memory.md compares with measured peaks. Bytes; arithmetic only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/ds_config.h"
#include "tessera/plan/census.h"

namespace tessera::plan {

enum class Place { kDevice, kHost, kNvme };
enum class OffloadTo { kNone, kCpu, kNvme };

struct TrainingSetup {
  int stage = 0;
  OffloadTo optimizer = OffloadTo::kNone;
  OffloadTo params = OffloadTo::kNone;  // stage 3
  int64_t ranks = 1;
  int64_t micro_batch = 1;   // samples
  int64_t length = 128;      // tokens of a sample
  int64_t tensor_ranks = 1;  // between which the tokens are shared out outside the layers that they cut
  bool activation_checkpointing = false;
  double target_share = 0.15;  // of the tokens, those that the loss counts (Architecture::logits_of_targets_only)

  config::Dtypes dtypes;
  int64_t state_tensors = 2;  // that the optimizer keeps for each weight
  bool elementwise = true;    // the optimizer: false: its step takes whole units
  bool sign_errors = false;   // compressed communication keeps what rounding lost

  double optimizer_ratio = 1;              // of the elements, those whose optimizer state is offloaded
  int64_t sub_group_size = 1'000'000'000;  // elements; of an optimizer on NVMe, which moves in tiles
  bool pipeline_read = false;              // a tile more in memory
  bool pipeline_write = false;             // …
  int64_t optimizer_buffers = 0;           // at least so many, each for one tensor of a tile
  int64_t param_buffers = 5;               // shards on their way from NVMe
  int64_t max_in_cpu = 1'000'000'000;      // elements of an NVMe offload of parameters that stay in host memory

  // Stage 3, elements of whole units; config/zero_options.h.
  int64_t max_live_parameters = 1'000'000'000;
  int64_t max_reuse_distance = 1'000'000'000;
  int64_t prefetch_bucket_size = 50'000'000;

  // Stage 3 with ZeRO++ (zero/gather_source.h).
  int64_t secondary_ranks = 1;  // that hold the parameters between them; 1: all ranks do
  bool quantized_weights = false;

  bool on_cpu = true;                              // the device is this host
  bool pins_optimizer = true, pins_params = true;  // otherwise: what of them rests in the host's memory
  bool wide_products = true;                       // products of 16-bit matrices are computed in fp32 (nn/layers.h)
};

// Of a micro batch's tokens, those that the head runs on.
int64_t targets_of(const Architecture& net, const TrainingSetup& setup);

struct MemoryTerm {
  std::string what;
  Place place = Place::kDevice;
  int64_t bytes = 0;
  bool certain = false;  // no run does without it: the lower bound by which a run is refused
  bool pinned = false;   // of the host, for a device's copies (storage/pinned_memory.h): as much as its limit allows
};

struct MemoryNeed {
  std::vector<MemoryTerm> terms;

  int64_t bytes(Place place) const;
  int64_t certain_bytes(Place place) const;
  int64_t pinned_bytes() const;  // of bytes(kHost)
};

MemoryNeed memory_need(const ModelCensus& model, const TrainingSetup& setup);

// All that a ds_config says about it; `ranks`, batch and dtypes included. The rest keeps its defaults.
TrainingSetup setup_of(const config::DsConfig& config, int64_t ranks);

int64_t bytes_of(config::Dtype dtype);
const char* name_of(OffloadTo offload);  // "none", "cpu", "nvme"

}  // namespace tessera::plan

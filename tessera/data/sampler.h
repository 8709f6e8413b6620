// Which samples an epoch visits, in which order, and which of them a rank gets: the arithmetic of
// torch.utils.data.DistributedSampler, to the same numbers.
//
//   global order   torch.randperm(dataset_size) with a CPU generator seeded with seed + epoch (0, 1, 2, … if not
//   shuffled),
//                  then repeated from its start up to a multiple of world_size (drop_last: cut down to one)
//   rank r         positions r, r + world_size, r + 2 world_size, …
//
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::data {

struct SamplerOptions {
  size_t dataset_size = 0;
  int64_t world_size = 1;
  int64_t rank = 0;  // only rank_order looks at it
  uint64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;
};

// The padded order of all ranks together; its length is a multiple of world_size.
std::vector<size_t> epoch_order(const SamplerOptions& options, int64_t epoch);

std::vector<size_t> rank_order(const SamplerOptions& options, int64_t epoch);

// epoch_order(…).size(), without making it.
size_t epoch_length(const SamplerOptions& options);

}  // namespace tessera::data

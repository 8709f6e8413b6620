// The batch arithmetic: of the global batch, the micro batch and the number of accumulated micro batches any two give
// the third, and either of the first two alone gives the rest.
//
//   global = micro * accumulation * data_parallel        in samples
//
// The order of resolution and the floors are DeepSpeed's (train_batch_size = global, train_micro_batch_size_per_gpu =
// micro, gradient_accumulation_steps = accumulation), so whatever it accepts resolves to the same numbers here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::config {

struct BatchSizes {
  int64_t global = 0;        // samples in an optimizer step, over all data-parallel ranks
  int64_t micro = 0;         // samples in one forward pass of one rank
  int64_t accumulation = 0;  // micro batches that a rank adds up in an optimizer step
};

// What the configuration and its door say of the batch.
struct BatchRequest {
  std::optional<int64_t> global = {};
  std::optional<int64_t> micro = {};
  std::optional<int64_t> accumulation = {};
  int64_t data_parallel_size = 1;

  // Where global and micro are given, accumulation is not, and they do not fit the number of ranks: the largest micro
  // batch below the given one that does, because the global batch is what decides the training. Only for a door that
  // loads the data itself. False: an error, as in DeepSpeed.
  bool may_lower_micro = false;
};

// `where` is the place of the batch keys, for errors: ErrorKind::kConfig with the four numbers and the values that fit.
BatchSizes resolve_batch_sizes(const BatchRequest& request, const std::string& where);

}  // namespace tessera::config

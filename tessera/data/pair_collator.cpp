#include "tessera/data/pair_collator.h"

#include <algorithm>

namespace tessera::data {

Batch PairCollator::collate(std::span<const size_t> samples, int64_t epoch) const {
  Batch batch;
  batch.rows = static_cast<int64_t>(samples.size());
  const auto sources = samples_of(dataset_.sources(), samples), targets = samples_of(dataset_.targets(), samples);
  add_inputs(batch, sources, padding_);
  const int64_t length = padded_length(targets, target_length_);
  std::vector<int64_t>& labels = batch.add("labels", {batch.rows, length}, kNoTarget);
  for (size_t row = 0; row < targets.size(); ++row) {
    std::copy(targets[row].begin(), targets[row].end(),
              labels.begin() + static_cast<std::ptrdiff_t>(row) * static_cast<std::ptrdiff_t>(length));
  }
  batch.target_tokens = count_targets(samples, epoch);
  batch.tokens += batch.target_tokens;
  return batch;
}

int64_t PairCollator::count_targets(std::span<const size_t> samples, int64_t) const {
  int64_t count = 0;
  for (const size_t sample : samples) count += static_cast<int64_t>(dataset_.targets().sample(sample).size());
  return count;
}

}  // namespace tessera::data

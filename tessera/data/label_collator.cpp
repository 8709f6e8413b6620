#include "tessera/data/label_collator.h"

#include <algorithm>

namespace tessera::data {

Batch LabelCollator::collate(std::span<const size_t> samples, int64_t epoch) const {
  Batch batch;
  batch.rows = static_cast<int64_t>(samples.size());
  const int64_t length = add_inputs(batch, samples_of(dataset_.texts(), samples), padding_);
  std::vector<int64_t>& token_types = batch.add("token_type_ids", {batch.rows, length}, 0);
  std::vector<int64_t>& labels = batch.add("labels", {batch.rows}, kNoTarget);
  for (size_t row = 0; row < samples.size(); ++row) {
    const auto types = dataset_.token_types(samples[row]);
    std::copy(types.begin(), types.end(),
              token_types.begin() + static_cast<std::ptrdiff_t>(row) * static_cast<std::ptrdiff_t>(length));
    labels[row] = dataset_.label(samples[row]);
  }
  batch.target_tokens = count_targets(samples, epoch);
  return batch;
}

}  // namespace tessera::data

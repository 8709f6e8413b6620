#include "tessera/data/label_collator.h"

#include <algorithm>

namespace tessera::data {

Batch LabelCollator::collate(std::span<const size_t> samples, int64_t epoch) const {
  Batch batch;
  batch.rows = static_cast<int64_t>(samples.size());
  int64_t length = options_.length;
  for (const size_t sample : samples) {
    if (options_.length == 0) length = std::max(length, static_cast<int64_t>(dataset_.sample(sample).size()));
  }
  std::vector<int64_t>& input_ids = batch.add("input_ids", {batch.rows, length}, options_.padding_id);
  std::vector<int64_t>& mask = batch.add("attention_mask", {batch.rows, length}, 0);
  std::vector<int64_t>& token_types = batch.add("token_type_ids", {batch.rows, length}, 0);
  std::vector<int64_t>& labels = batch.add("labels", {batch.rows}, kNoTarget);
  for (size_t row = 0; row < samples.size(); ++row) {
    const auto tokens = dataset_.sample(samples[row]), types = dataset_.token_types(samples[row]);
    const auto first = static_cast<std::ptrdiff_t>(row) * length;
    std::copy(tokens.begin(), tokens.end(), input_ids.begin() + first);
    std::copy(types.begin(), types.end(), token_types.begin() + first);
    std::fill_n(mask.begin() + first, tokens.size(), 1);
    labels[row] = dataset_.label(samples[row]);
    batch.tokens += static_cast<int64_t>(tokens.size());
  }
  batch.target_tokens = count_targets(samples, epoch);
  return batch;
}

int64_t LabelCollator::count_targets(std::span<const size_t> samples, int64_t) const {
  return static_cast<int64_t>(samples.size());
}

}  // namespace tessera::data

#include "tessera/data/preference_collator.h"

#include <algorithm>

namespace tessera::data {

Batch PreferenceCollator::collate(std::span<const size_t> samples, int64_t epoch) const {
  Batch batch;
  batch.rows = static_cast<int64_t>(samples.size());
  const TokenSamples* const answers[] = {&dataset_.chosen(), &dataset_.rejected()};
  size_t longest = 0;
  for (const TokenSamples* const of : answers) {
    for (const size_t sample : samples) longest = std::max(longest, of->sample(sample).size());
  }
  const int64_t length = options_.length > 0 ? options_.length : static_cast<int64_t>(longest);
  std::vector<int64_t>& input_ids = batch.add("input_ids", {2 * batch.rows, length}, options_.padding_id);
  std::vector<int64_t>& mask = batch.add("attention_mask", {2 * batch.rows, length}, 0);
  std::vector<int64_t>& labels = batch.add("labels", {2 * batch.rows, length}, kNoTarget);
  size_t first = 0;
  for (const TokenSamples* const of : answers) {
    for (const size_t sample : samples) {
      const auto tokens = of->sample(sample);
      for (size_t i = 0; i < tokens.size(); ++i) {
        input_ids[first + i] = tokens[i];
        mask[first + i] = 1;
        if (of->is_target(sample, static_cast<int64_t>(i))) labels[first + i] = tokens[i];
      }
      batch.tokens += static_cast<int64_t>(tokens.size());
      first += static_cast<size_t>(length);
    }
  }
  std::vector<int64_t>& pairs = batch.add("pairs", {batch.rows}, 0);
  for (size_t row = 0; row < samples.size(); ++row) pairs[row] = first_number_ + static_cast<int64_t>(samples[row]);
  batch.target_tokens = count_targets(samples, epoch);
  return batch;
}

int64_t PreferenceCollator::count_targets(std::span<const size_t> samples, int64_t) const {
  return static_cast<int64_t>(samples.size());
}

}  // namespace tessera::data

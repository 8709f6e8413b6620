#include "tessera/data/preference_collator.h"

namespace tessera::data {

Batch PreferenceCollator::collate(std::span<const size_t> samples, int64_t epoch) const {
  Batch batch;
  batch.rows = static_cast<int64_t>(samples.size());
  const TokenColumn answers[] = {dataset_.chosen(), dataset_.rejected()};
  std::vector<TokenRow> rows = samples_of(answers[0], samples);
  for (const TokenRow& row : samples_of(answers[1], samples)) rows.push_back(row);
  const int64_t length = add_inputs(batch, rows, padding_);
  std::vector<int64_t>& labels = batch.add("labels", {2 * batch.rows, length}, kNoTarget);
  size_t first = 0;
  for (const TokenColumn& of : answers) {
    for (const size_t sample : samples) {
      const TokenRow tokens = of.sample(sample);
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (of.is_target(sample, static_cast<int64_t>(i))) labels[first + i] = tokens[i];
      }
      first += static_cast<size_t>(length);
    }
  }
  std::vector<int64_t>& pairs = batch.add("pairs", {batch.rows}, 0);
  for (size_t row = 0; row < samples.size(); ++row) pairs[row] = first_number_ + static_cast<int64_t>(samples[row]);
  batch.target_tokens = count_targets(samples, epoch);
  return batch;
}

}  // namespace tessera::data

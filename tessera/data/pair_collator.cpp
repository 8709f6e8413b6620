#include "tessera/data/pair_collator.h"

#include <algorithm>

namespace tessera::data {
namespace {

int64_t longest(const TokenSamples& of, std::span<const size_t> samples) {
  size_t length = 0;
  for (const size_t sample : samples) length = std::max(length, of.sample(sample).size());
  return static_cast<int64_t>(length);
}

}  // namespace

Batch PairCollator::collate(std::span<const size_t> samples, int64_t epoch) const {
  Batch batch;
  batch.rows = static_cast<int64_t>(samples.size());
  const int64_t source_length =
      options_.source_length > 0 ? options_.source_length : longest(dataset_.sources(), samples);
  const int64_t target_length =
      options_.target_length > 0 ? options_.target_length : longest(dataset_.targets(), samples);
  std::vector<int64_t>& input_ids = batch.add("input_ids", {batch.rows, source_length}, options_.padding_id);
  std::vector<int64_t>& mask = batch.add("attention_mask", {batch.rows, source_length}, 0);
  std::vector<int64_t>& labels = batch.add("labels", {batch.rows, target_length}, kNoTarget);
  for (size_t row = 0; row < samples.size(); ++row) {
    const auto source = dataset_.sources().sample(samples[row]), target = dataset_.targets().sample(samples[row]);
    const auto first = static_cast<std::ptrdiff_t>(row) * source_length;
    std::copy(source.begin(), source.end(), input_ids.begin() + first);
    std::fill_n(mask.begin() + first, source.size(), 1);
    std::copy(target.begin(), target.end(), labels.begin() + static_cast<std::ptrdiff_t>(row) * target_length);
    batch.tokens += static_cast<int64_t>(source.size() + target.size());
  }
  batch.target_tokens = count_targets(samples, epoch);
  return batch;
}

int64_t PairCollator::count_targets(std::span<const size_t> samples, int64_t) const {
  int64_t count = 0;
  for (const size_t sample : samples) count += static_cast<int64_t>(dataset_.targets().sample(sample).size());
  return count;
}

}  // namespace tessera::data

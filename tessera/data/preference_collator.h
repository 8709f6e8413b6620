// Pairs of answers to batches of a causal language model: all chosen ones, then all rejected ones, so that a pair goes
// through the model in one pass.
//
// "input_ids", "attention_mask" (1 for a token, 0 for padding) and "labels" (kNoTarget where a token is of no answer)
// are (2 · rows, length); "pairs" (rows) has the pairs' numbers: of the samples, from first_number on. A pair is one
// target: what a loss is a mean over.
//
// Borrows the dataset, which must outlive the collator. Immutable but for number_from; safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/data/collator.h"
#include "tessera/data/preference_dataset.h"

namespace tessera::data {

struct PreferenceCollatorOptions {
  int64_t length = 0;  // 0: the longest of the batch
  int64_t padding_id = 0;
};

class PreferenceCollator final : public Collator {
 public:
  PreferenceCollator(const PreferenceDataset& dataset, const PreferenceCollatorOptions& options)
      : dataset_(dataset), options_(options) {}

  // Before the first batch.
  void number_from(int64_t first) { first_number_ = first; }

  size_t size() const override { return dataset_.size(); }
  Batch collate(std::span<const size_t> samples, int64_t epoch) const override;
  int64_t count_targets(std::span<const size_t> samples, int64_t epoch) const override;

 private:
  const PreferenceDataset& dataset_;
  PreferenceCollatorOptions options_;
  int64_t first_number_ = 0;
};

}  // namespace tessera::data

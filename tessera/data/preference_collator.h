// Pairs of answers to batches of a causal language model: all chosen ones, then all rejected ones, so that a pair goes
// through the model in one pass.
//
// "input_ids", "attention_mask" (padded_collator.h) and "labels" (kNoTarget where a token is of no answer) are
// (2 · rows, length); "pairs" (rows) has the pairs' numbers: of the samples, from first_number on. A pair is one
// target: what a loss is a mean over.
#pragma once

#include "tessera/data/padded_collator.h"
#include "tessera/data/preference_dataset.h"

namespace tessera::data {

class PreferenceCollator final : public PaddedCollator<PreferenceDataset> {
 public:
  using PaddedCollator::PaddedCollator;

  // Before the first batch.
  void number_from(int64_t first) { first_number_ = first; }

  Batch collate(std::span<const size_t> samples, int64_t epoch) const override;

 private:
  int64_t first_number_ = 0;
};

}  // namespace tessera::data

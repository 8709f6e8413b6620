// Pairs of texts to batches of an encoder-decoder: "input_ids" and "attention_mask" of what is read
// (padded_collator.h), and "labels" (rows, target length), kNoTarget where a target is shorter. Each token to be
// written is a target.
#pragma once

#include "tessera/data/padded_collator.h"
#include "tessera/data/pair_dataset.h"

namespace tessera::data {

class PairCollator final : public PaddedCollator<PairDataset> {
 public:
  // target_length: as Padding::length.
  PairCollator(const PairDataset& dataset, const Padding& padding, int64_t target_length)
      : PaddedCollator(dataset, padding), target_length_(target_length) {}

  Batch collate(std::span<const size_t> samples, int64_t epoch) const override;
  int64_t count_targets(std::span<const size_t> samples, int64_t epoch) const override;

 private:
  int64_t target_length_;
};

}  // namespace tessera::data

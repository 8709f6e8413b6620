// Pairs of texts to batches of an encoder-decoder: "input_ids" and "attention_mask" (rows, source length), and "labels"
// (rows, target length), kNoTarget where a target is shorter. Padded to the longest of the batch, or to the options'.
//
// Borrows the dataset, which must outlive the collator. Immutable; safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/data/collator.h"
#include "tessera/data/pair_dataset.h"

namespace tessera::data {

struct PairCollatorOptions {
  int64_t source_length = 0, target_length = 0;  // 0: the longest of the batch
  int64_t padding_id = 0;
};

class PairCollator final : public Collator {
 public:
  PairCollator(const PairDataset& dataset, const PairCollatorOptions& options) : dataset_(dataset), options_(options) {}

  size_t size() const override { return dataset_.size(); }
  Batch collate(std::span<const size_t> samples, int64_t epoch) const override;
  int64_t count_targets(std::span<const size_t> samples, int64_t epoch) const override;

 private:
  const PairDataset& dataset_;
  PairCollatorOptions options_;
};

}  // namespace tessera::data

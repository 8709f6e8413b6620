// Texts with labels to batches of a classifier: "input_ids", "attention_mask" and "token_type_ids" (rows, length), and
// "labels" (rows). Each row is a target. Padded to the longest of the batch, or to the options' length.
//
// Borrows the dataset, which must outlive the collator. Immutable; safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/data/collator.h"
#include "tessera/data/label_dataset.h"

namespace tessera::data {

struct LabelCollatorOptions {
  int64_t length = 0;  // 0: the longest of the batch
  int64_t padding_id = 0;
};

class LabelCollator final : public Collator {
 public:
  LabelCollator(const LabelDataset& dataset, const LabelCollatorOptions& options)
      : dataset_(dataset), options_(options) {}

  size_t size() const override { return dataset_.size(); }
  Batch collate(std::span<const size_t> samples, int64_t epoch) const override;
  int64_t count_targets(std::span<const size_t> samples, int64_t epoch) const override;

 private:
  const LabelDataset& dataset_;
  LabelCollatorOptions options_;
};

}  // namespace tessera::data

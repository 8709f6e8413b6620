// Texts with labels to batches of a classifier: "input_ids" and "attention_mask" (padded_collator.h), "token_type_ids"
// (rows, length), 0 where there is padding, and "labels" (rows). Each row is a target.
#pragma once

#include "tessera/data/label_dataset.h"
#include "tessera/data/padded_collator.h"

namespace tessera::data {

class LabelCollator final : public PaddedCollator<LabelDataset> {
 public:
  using PaddedCollator::PaddedCollator;

  Batch collate(std::span<const size_t> samples, int64_t epoch) const override;
};

}  // namespace tessera::data

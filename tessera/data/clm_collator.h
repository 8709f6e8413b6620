// Documents to batches of a causal language model: each token is predicted from those before it in its document.
//
// The arrays are (rows, length): "input_ids"; "labels", the token itself, and kNoTarget for the first of a document,
// which nothing comes before, for padding, and for tokens that are no targets of their document. Where rows are packed
// also "position_ids", which begin again at 0 with each document, so that a network lets none see another
// (models/causal_network.h); else "attention_mask", 1 for a token and 0 for padding, if there is any.
//
// Borrows the documents, which must outlive the collator. Immutable; safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/data/collator.h"
#include "tessera/data/dataset.h"
#include "tessera/data/packing.h"

namespace tessera::data {

struct ClmOptions {
  int64_t max_length = 512;  // of a row
  Packing packing = Packing::kFill;
  bool pad_to_max_length = true;  // false: pad to the longest row of the batch
  int64_t padding_id = 0;         // what stands where nothing is; no loss counts it

  // Documents up to the end of each part, of which no two share a row; empty: one part.
  std::vector<uint64_t> part_ends = {};
};

class ClmCollator final : public Collator {
 public:
  ClmCollator(const TokenSamples& documents, const ClmOptions& options);

  size_t size() const override { return rows_.size(); }
  std::vector<size_t> part_ends() const override { return rows_.part_ends(); }
  Batch collate(std::span<const size_t> samples, int64_t epoch) const override;
  int64_t count_targets(std::span<const size_t> samples, int64_t epoch) const override;

 private:
  const TokenSamples& documents_;
  ClmOptions options_;
  PackedRows rows_;
};

}  // namespace tessera::data

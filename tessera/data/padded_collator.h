// What collators of rows of tokens that are padded to one length share. Each borrows its dataset, which must outlive
// it, and is safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/data/collator.h"

namespace tessera::data {

struct Padding {
  int64_t length = 0;  // of a row; 0: the longest of the batch
  int64_t id = 0;      // what stands where no token is
};

using TokenRow = std::span<const int32_t>;

// The options' length, or that of the longest row.
int64_t padded_length(std::span<const TokenRow> rows, int64_t length);

// Adds "input_ids" and "attention_mask" (1 for a token, 0 for padding), both (rows, length), and the rows' tokens to
// those that the batch counts. Returns the length.
int64_t add_inputs(Batch& batch, std::span<const TokenRow> rows, const Padding& padding);

template <class Dataset>
class PaddedCollator : public Collator {
 public:
  PaddedCollator(const Dataset& dataset, const Padding& padding) : dataset_(dataset), padding_(padding) {}

  size_t size() const final { return dataset_.size(); }

  // A sample is one target, where a collator does not say otherwise.
  int64_t count_targets(std::span<const size_t> samples, int64_t /*epoch*/) const override {
    return static_cast<int64_t>(samples.size());
  }

 protected:
  const Dataset& dataset_;
  const Padding padding_;
};

}  // namespace tessera::data

// From numbered samples to a batch: the part of a task that knows what its batches hold. collators.h has the table.
//
// What a sample becomes follows from (seed, epoch, sample index) alone, never from the batch or the rank that it comes
// in, so a collator has no state to save. Immutable; safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/data/batch.h"
#include "tessera/data/samples.h"

namespace tessera::data {

class Collator {
 public:
  virtual ~Collator() = default;

  virtual size_t size() const = 0;  // samples that there are

  // Row i is samples[i].
  virtual Batch collate(std::span<const size_t> samples, int64_t epoch) const = 0;

  // The target_tokens that collate(samples, epoch) would give, without building the batch.
  virtual int64_t count_targets(std::span<const size_t> samples, int64_t epoch) const = 0;

  // All of them, for a loader. Borrows the collator.
  Samples<Batch> samples() const {
    return {
        .size = size(),
        .collate = [this](std::span<const size_t> rows, int64_t epoch) { return collate(rows, epoch); },
        .count_targets = [this](std::span<const size_t> rows, int64_t epoch) { return count_targets(rows, epoch); }};
  }
};

}  // namespace tessera::data

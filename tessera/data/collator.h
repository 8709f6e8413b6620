// From numbered samples to a batch: the part of a task that knows what its batches hold. collators.h has the table.
//
// A batch is what a model reads in one forward pass: named arrays of int64, so that tensors can wrap them without a
// copy. Which names there are is between a collator and the network that reads them, as in transformers: "input_ids",
// "attention_mask", "labels", … A value; owns its memory.
//
// What a sample becomes follows from (seed, epoch, sample index) alone, never from the batch or the rank that it comes
// in, so a collator has no state to save. Immutable; safe to use from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/loader.h"

namespace tessera::data {

inline constexpr int64_t kNoTarget = -100;  // a label that no loss counts; PyTorch's ignore_index

// Row-major; the first dimension is the batch's rows.
struct Array {
  std::vector<int64_t> shape;
  std::vector<int64_t> values;
};

struct Batch {
  int64_t rows = 0;
  std::map<std::string, Array> arrays;
  int64_t target_tokens = 0;  // what the loss is a sum over
  int64_t tokens = 0;         // without padding

  // Adds an array of this shape that holds `value` throughout; returns its values.
  std::vector<int64_t>& add(const std::string& name, std::vector<int64_t> shape, int64_t value);
};

class Collator {
 public:
  virtual ~Collator() = default;

  virtual size_t size() const = 0;  // samples that there are

  // Its samples up to the end of each part of the data (an entry of data.train), whose weights a mixture has; empty:
  // those of the dataset.
  virtual std::vector<size_t> part_ends() const { return {}; }

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

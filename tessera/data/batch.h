// What a model reads in one forward pass: named arrays of int64, so that tensors can wrap them without a copy. Which
// names there are is between a collator (collators.h) and the network that reads them, as in transformers: "input_ids",
// "attention_mask", "labels", … A value; owns its memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

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

}  // namespace tessera::data

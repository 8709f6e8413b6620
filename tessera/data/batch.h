// What a model reads in one forward pass. Row-major (rows, length) arrays of int64, so that a tensor can wrap them
// without a copy. A value; owns its memory.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::data {

inline constexpr int64_t kNoTarget = -100;  // a label that no loss counts; PyTorch's ignore_index

struct Batch {
  int64_t rows = 0;
  int64_t length = 0;
  std::vector<int64_t> input_ids;
  std::vector<int64_t> attention_mask;  // 1 for a token, 0 for padding
  std::vector<int64_t> token_type_ids;  // 0 throughout
  std::vector<int64_t> labels;          // the token to be found, kNoTarget where there is nothing to find
  int64_t target_tokens = 0;            // labels other than kNoTarget
  int64_t tokens = 0;                   // ones in attention_mask
};

}  // namespace tessera::data

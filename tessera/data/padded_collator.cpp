#include "tessera/data/padded_collator.h"

#include <algorithm>

namespace tessera::data {

int64_t padded_length(std::span<const TokenRow> rows, int64_t length) {
  if (length > 0) return length;
  size_t longest = 0;
  for (const TokenRow& row : rows) longest = std::max(longest, row.size());
  return static_cast<int64_t>(longest);
}

int64_t add_inputs(Batch& batch, std::span<const TokenRow> rows, const Padding& padding) {
  const int64_t length = padded_length(rows, padding.length);
  const std::vector<int64_t> shape = {static_cast<int64_t>(rows.size()), length};
  std::vector<int64_t>& input_ids = batch.add("input_ids", shape, padding.id);
  std::vector<int64_t>& mask = batch.add("attention_mask", shape, 0);
  std::ptrdiff_t first = 0;
  for (const TokenRow& row : rows) {
    std::copy(row.begin(), row.end(), input_ids.begin() + first);
    std::fill_n(mask.begin() + first, row.size(), 1);
    batch.tokens += static_cast<int64_t>(row.size());
    first += static_cast<std::ptrdiff_t>(length);
  }
  return length;
}

}  // namespace tessera::data

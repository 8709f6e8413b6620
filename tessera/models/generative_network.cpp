#include "tessera/models/generative_network.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace tessera::models {

PaddedRows padded(const PromptRows& prompts, bool at_the_front) {
  size_t longest = 0, shortest = prompts.rows.front().size();
  for (const auto& row : prompts.rows) {
    longest = std::max(longest, row.size());
    shortest = std::min(shortest, row.size());
  }
  const std::vector<int64_t> shape{static_cast<int64_t>(prompts.rows.size()), static_cast<int64_t>(longest)};
  const at::Tensor ids = at::zeros(shape, at::kLong), present = at::zeros(shape, at::kBool);
  auto* id = ids.mutable_data_ptr<int64_t>();
  auto* there = present.mutable_data_ptr<bool>();
  for (const auto& row : prompts.rows) {
    const size_t first = at_the_front ? longest - row.size() : 0;
    std::copy(row.begin(), row.end(), id + first);
    std::fill_n(there + first, row.size(), true);
    id += longest;
    there += longest;
  }
  return {.ids = ids.to(prompts.device), .present = shortest == longest ? at::Tensor() : present.to(prompts.device)};
}

}  // namespace tessera::models

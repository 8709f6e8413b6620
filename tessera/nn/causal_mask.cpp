#include "tessera/nn/causal_mask.h"

#include <ATen/ops/arange.h>

namespace tessera::nn {

at::Tensor causal_mask(const AttentionPattern& pattern, const layout::Range& queries, const layout::Range& keys,
                       const at::Device& device) {
  const auto places = at::TensorOptions(at::kLong).device(device);
  const at::Tensor query = at::arange(queries.begin, queries.end, places).view({1, 1, -1, 1});
  const at::Tensor key = at::arange(keys.begin, keys.end, places).view({1, 1, 1, -1});
  at::Tensor seen = key <= query;
  if (pattern.window > 0) seen = seen.logical_and(key > query - pattern.window);
  if (!pattern.present.defined()) return seen;
  const at::Tensor present = pattern.present.narrow(1, keys.begin, keys.numel()).unsqueeze(1).unsqueeze(1);
  return seen.logical_and(present).logical_or(key == query);
}

bool padding_is_behind(const at::Tensor& present) {
  const int64_t length = present.size(1);
  return length < 2 || !present.narrow(1, 1, length - 1)
                            .logical_and(present.narrow(1, 0, length - 1).logical_not())
                            .any()
                            .item<bool>();
}

}  // namespace tessera::nn

// Who sees whom under a causal pattern, as a mask.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/layout/range.h"
#include "tessera/nn/attention.h"

namespace tessera::nn {

// Of these places in a row, true where a query sees a key by the pattern, its documents aside: (batch, or 1 where
// nobody is padding, 1, queries, keys). Padding sees itself, so that its softmax is one of something.
at::Tensor causal_mask(const AttentionPattern& pattern, const layout::Range& queries, const layout::Range& keys,
                       const at::Device& device);

}  // namespace tessera::nn

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

// Whether no padding stands before a token that is there, in (batch, keys) bool: then no such token sees any, and a
// causal pattern needs no word of it.
bool padding_is_behind(const at::Tensor& present);

}  // namespace tessera::nn

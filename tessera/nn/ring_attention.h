// Attention of rows that several ranks share, by which keys and values go round (ring attention; Liu et al. 2023, arXiv
// 2310.01889): each rank attends with its own queries to the block of keys and values that it has, passes that on to
// the next rank and takes the one before it, until each has seen all. What one block gave is put together with what
// the others gave by the logarithms of the sums of their softmaxes, as within FlashAttention (Dao 2023, arXiv
// 2307.08691, section 3.1). Any number of heads will do, and no rank ever has whole rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "tessera/layout/range.h"
#include "tessera/nn/attention.h"

namespace tessera::comm {
class Group;
}

namespace tessera::nn {

// Of each rank, which tokens of a row it has, in ascending order.
using TokensOfRanks = std::vector<std::vector<layout::Range>>;

// Rows of so many tokens in 2 * ranks parts, of which rank r has part r and part 2 * ranks - 1 - r: under a causal
// pattern every rank has the same work (Grattafiori et al. 2024, arXiv 2407.21783, section 3.3.2). Where the length
// does not divide, the first parts have one more token.
TokensOfRanks balanced_tokens(int64_t length, int ranks);

// query (batch, own tokens, heads, head size), key and value (batch, own tokens, key heads, head size), on the CPU;
// `pattern` is causal, and of whole rows. -> (batch, own tokens, heads, head size). With gradients: those of keys and
// values are added up in fp32 on their way round, in an order that does not change.
at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::shared_ptr<comm::Group>& group, const TokensOfRanks& tokens,
                          const AttentionPattern& pattern, double scale);

}  // namespace tessera::nn

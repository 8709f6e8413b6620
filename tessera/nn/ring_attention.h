// Attention of rows that several ranks share, by which keys and values go round (ring attention; Liu et al. 2023, arXiv
// 2310.01889): each rank attends with its own queries to the block of keys and values that it has, passes that on to
// the next rank and takes the one before it, until each has seen all. What one block gave is put together with what
// the others gave by the logarithms of the sums of their softmaxes, as within FlashAttention (Dao 2023, arXiv
// 2307.08691, section 3.1). Any number of heads will do, and no rank ever has whole rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "tessera/nn/ring_pieces.h"

namespace tessera::comm {
class Group;
}

namespace tessera::nn {

// query (batch, own tokens, heads, head size), key and value (batch, own tokens, key heads, head size), on the CPU;
// `pieces` are those of this rank. -> (batch, own tokens, heads, head size). With gradients: those of keys and values
// are added up in fp32 on their way round, in an order that does not change.
at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::shared_ptr<comm::Group>& group, const std::shared_ptr<const RingPieces>& pieces,
                          double scale);

}  // namespace tessera::nn

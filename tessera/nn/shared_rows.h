// Rows of tokens that the ranks of a context axis share.
//
//   const SharedRows rows(axis, length);
//   hidden = embed(rows.own(ids));
//   …
//   context = rows.attend(query, key, value, pattern, options);
//
// Every rank of the axis runs the same layers in the same order, forward and backward. For one pass, by one thread:
// what layers of the same pattern have in common is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/nn/attention.h"
#include "tessera/nn/context_axis.h"
#include "tessera/nn/ring_pieces.h"

namespace tessera::nn {

// By Ulysses each rank has consecutive tokens; by the ring those of balanced_tokens(). Where the length does not
// divide, some ranks have one more, and of rows that are shorter than the axis some ranks have none.
class SharedRows {
 public:
  SharedRows(const ContextAxis& axis, int64_t length);

  // This rank's tokens, in order: (rows, length, …) -> (rows, own tokens, …), a view where they are consecutive.
  at::Tensor own(const at::Tensor& rows) const;

  // As nn::attention() of whole rows: query (batch, own tokens, heads, head size), key and value (batch, own tokens,
  // key heads, head size); pattern of whole rows. -> (batch, own tokens, heads * head size)
  at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const AttentionPattern& pattern, const AttentionOptions& options) const;

 private:
  std::shared_ptr<const RingPieces> ring_pieces(const AttentionPattern& pattern, at::ScalarType dtype) const;

  ContextAxis axis_;
  TokensOfRanks tokens_;
  mutable std::vector<std::shared_ptr<const RingPieces>> ring_pieces_;  // of each pattern so far: of a kind of layers
};

}  // namespace tessera::nn

// Between the layers that a tensor axis cuts, each rank has some tokens alone: norms, dropout and what is added up are
// computed once, not on every rank, and kept for backward once (Korthikanti et al. 2022, arXiv 2205.05198, section
// 4.2.2, "sequence parallelism").
//
//   x = into_cut_layers(axis, norm(h), tokens)           all-gather; backward: reduce-scatter
//   h = h + out_of_cut_layers(axis, down(silu(up(x))))   reduce-scatter; backward: all-gather
//
// These are the halves of all-reduces, so as many bytes travel as where every rank has all tokens. A rank's tokens are
// ceil(tokens / ranks) of the batch's in order, (rows, width); what the last ranks have too few is filled up with rows
// that nobody reads. Over an axis of one rank they are the whole batch, (batch, length, width), and nothing happens.
//
// A parameter that is used on own tokens alone has a part of its gradient on each rank: TensorAxis::shared_parameter
// adds them up.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::nn {

class TensorAxis;

// Of a batch.
struct TokenShape {
  int64_t batch = 0, length = 0;

  int64_t count() const { return batch * length; }

  template <class F>
  void for_each_tensor(F /*f*/) const {}  // there are none (unit_module.h)
};

TokenShape tokens_of(const at::Tensor& ids);  // (batch, length, …)

// Own tokens -> all, (batch, length, width). Backward: of own tokens, the sum of the ranks' gradients, each of which
// comes of that rank's part of the layers.
at::Tensor into_cut_layers(const TensorAxis& axis, const at::Tensor& own, const TokenShape& tokens);

// What each rank's part of the layers makes of all tokens, (batch, length, width) -> of own tokens, the sum. Sums are
// those of an all-reduce, to the bit.
at::Tensor out_of_cut_layers(const TensorAxis& axis, const at::Tensor& x);

// Own tokens -> all, for what all ranks then compute alike. Backward: own tokens' of the gradient.
at::Tensor all_tokens(const TensorAxis& axis, const at::Tensor& own, const TokenShape& tokens);

// The ids of own tokens, of all, (batch, length) or (1, length) for each row of the batch: 0 in rows that nobody reads.
at::Tensor own_tokens(const TensorAxis& axis, const at::Tensor& ids, const TokenShape& tokens);

// Of own tokens. On the CPU what one process drops of all tokens is dropped.
at::Tensor dropout_of_own(const TensorAxis& axis, const at::Tensor& own, double probability, bool training,
                          const TokenShape& tokens);

}  // namespace tessera::nn

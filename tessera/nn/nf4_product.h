// A linear layer whose frozen weight is kept as NF4 (kernels/nf4.h), as in QLoRA (Dettmers et al. 2023):
//
//   y = x dequantized(W)^T + b
//
// The weight (out, in), or the part of it that is here, exists in the dtype of x, or of y's gradient, while a product
// with it is computed, in forward and again in backward, and is never kept. It gets no gradient, nor does b.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/kernels/nf4.h"

namespace tessera::nn {

using kernels::kNf4Block;
using kernels::Nf4;
using kernels::Nf4Part;

struct Nf4Weight {
  Nf4 bytes;
  Nf4Part part;  // rows: out
};

// Bytes for the part's blocks, and for what they are scaled by, of the whole: declared as the parameters of layers.h
// are, and frozen.
Nf4 declared_nf4(const Nf4Part& part);

// Of a whole weight (out, in), fp32: its bytes, flat.
Nf4 quantized(const at::Tensor& weight);

// The weight itself: (out, in), in the dtype that is asked for.
at::Tensor dequantized(const Nf4Weight& weight, at::ScalarType dtype);

// input (…, in) -> (…, out); bias (out), may be undefined.
at::Tensor nf4_product(const at::Tensor& input, const Nf4Weight& weight, const at::Tensor& bias);

}  // namespace tessera::nn

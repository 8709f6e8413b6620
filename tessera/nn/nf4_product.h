// A linear layer whose frozen weight is kept as NF4 (kernels/nf4.h), as in QLoRA (Dettmers et al. 2023):
//
//   y = x dequantized(W)^T + b
//
// The weight (out, in) exists in the dtype of x, or of y's gradient, while a product with it is computed, in forward
// and again in backward, and is never kept. It gets no gradient, nor does b.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::nn {

struct Nf4Shape {
  int64_t out = 0;
  int64_t in = 0;
};

// The parameter of such a weight: bytes, declared as those of layers.h are, and frozen.
at::Tensor declared_nf4(const Nf4Shape& shape);

// `weight`: fp32, (out, in). `bytes`: those of declared_nf4.
void quantize_weight(const at::Tensor& weight, const at::Tensor& bytes);

// The weight itself: (out, in), in the dtype that is asked for.
at::Tensor nf4_weight(const at::Tensor& bytes, const Nf4Shape& shape, at::ScalarType dtype);

// input (…, in) -> (…, out); bias (out), may be undefined.
at::Tensor nf4_product(const at::Tensor& input, const at::Tensor& bytes, const Nf4Shape& shape, const at::Tensor& bias);

}  // namespace tessera::nn

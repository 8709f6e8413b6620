// How LibTorch multiplies matrices of narrow numbers on this CPU.
#pragma once

#include <c10/core/ScalarType.h>

namespace tessera::kernels {

// Whether products of matrices of this dtype are at least about as fast as those of fp32. Those of bf16 are on CPUs
// with AVX-512, those of fp16 only where it has instructions for fp16; elsewhere they are 10 to 40 times slower.
bool has_fast_products(at::ScalarType dtype);

}  // namespace tessera::kernels

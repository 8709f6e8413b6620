// How LibTorch multiplies bf16 and fp16 matrices on this CPU.
#pragma once

#include <c10/core/ScalarType.h>

namespace tessera::kernels {

// Whether matrix products of this dtype are at least about as fast as in fp32. Those of bf16 are on CPUs with AVX-512,
// those of fp16 only where AVX-512 has instructions for fp16; elsewhere they are 10 to 40 times slower.
bool has_fast_products(at::ScalarType dtype);

}  // namespace tessera::kernels

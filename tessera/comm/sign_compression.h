// A tensor as one sign per element and one scale: 1/32 of fp32's bytes. What that loses is kept, and added to the next
// tensor that is compressed (error feedback; Seide et al. 2014, Tang et al. 2021):
//
//   x = values + error,  scale = sqrt(sum of x^2 / live elements),  error = x - scale * sign(x)
//
// A sign has no zero, so elements where `live` is 0 take no part: they come out as 0 and leave no error. All tensors:
// flat, contiguous, fp32, on the CPU, of one numel, a multiple of 8. The same bits on any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::comm {

// Bytes of a compressed tensor.
inline int64_t compressed_bytes(int64_t numel) { return numel / 8 + static_cast<int64_t>(sizeof(float)); }

// Into compressed_bytes() bytes; `error` is updated, `values` is overwritten.
void compress_signs(at::Tensor& values, at::Tensor& error, const at::Tensor& live, uint8_t* compressed);

// sum += factor * the compressed tensor.
void add_signs(const uint8_t* compressed, double factor, const at::Tensor& live, at::Tensor& sum);

}  // namespace tessera::comm

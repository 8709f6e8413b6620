// A tensor in fewer bits, for the wire: blocks of kQuantizedBlock elements, each as whole numbers of `bits` bits and
// one scale (ZeRO++, Wang et al. 2023, 3.1 and 3.3). With n = 2^(bits - 1) - 1, which is 127 or 7:
//
//   scale = max |x| / n,  q = round(x / scale), halves to even,  and what comes out is q * scale
//
// so no element is off by more than half its block's scale, and zeros stay zeros. A block that has an infinity or a NaN
// comes out as NaNs.
//
// Tensors: flat and contiguous, on any device; values fp32, fp16 or bf16, their numel a multiple of 8; quantized uint8:
// the blocks' scales in fp32, then the numbers, of 4 bits two a byte with the first one low. The same bits on any
// number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::kernels {

inline constexpr int64_t kQuantizedBlock = 256;  // elements; the last block of a tensor may be shorter

// What travels in so many bits: weights that are gathered, gradients within a host, and between hosts.
inline constexpr int kGatheredBits = 8, kInnerBits = 8, kOuterBits = 4;

// Bytes of a quantized tensor: 4 for each block, and numel * bits / 8.
int64_t quantized_bytes(int64_t numel, int bits);

// `bits`: 4 or 8. `quantized`: quantized_bytes(values.numel(), bits) elements.
void quantize(const at::Tensor& values, int bits, const at::Tensor& quantized);

// values = what comes out.
void dequantize(const at::Tensor& quantized, int bits, const at::Tensor& values);

// sum (fp32) += what comes out.
void add_dequantized(const at::Tensor& quantized, int bits, const at::Tensor& sum);

}  // namespace tessera::kernels

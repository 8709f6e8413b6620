// NF4, the 4-bit numbers of QLoRA (Dettmers et al. 2023), with double quantisation, to the bit as the package
// bitsandbytes 0.50.2 makes them on a CPU.
//
// A weight of n values is cut into blocks of 64. A block's scale is its largest magnitude; each value, divided by it,
// becomes the nearest of 16 numbers between -1 and 1 (the paper's appendix E). Then the scales, less their mean, the
// offset, are cut into blocks of 256 in the same way, and become the nearest of the 256 numbers of the dynamic map
// (Dettmers 2015). All in fp32:
//
//   value i = kNf4[code i] * scale i / 64;     scale j = map[scale code j] * nested j / 256 + offset
//
// then rounded to the dtype that is asked for. All of a weight lies in one tensor of bytes, nf4_bytes(n) of them:
//
//   [ codes, 2 a byte, the first in the high half: ceil(n/2) | scale codes: S = ceil(n/64) | pad to a multiple of 4 |
//     nested, fp32: ceil(S/256) | offset, fp32 ]
//
// about 4.13 bits a value. The offset's sum is that of one thread, whatever the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::kernels {

// Of a weight of so many values.
int64_t nf4_bytes(int64_t numel);

// `values`: finite, fp32, contiguous, on the CPU. `bytes`: uint8, contiguous, on the CPU, nf4_bytes of them.
void quantize_nf4(const at::Tensor& values, const at::Tensor& bytes);

// The weight of that shape in fp32, bf16 or fp16, on the device of the bytes.
at::Tensor dequantize_nf4(const at::Tensor& bytes, at::IntArrayRef shape, at::ScalarType dtype);

}  // namespace tessera::kernels

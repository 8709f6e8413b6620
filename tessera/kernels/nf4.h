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
// then rounded to the dtype that is asked for. A weight lies in two tensors of bytes:
//
//   blocks   of each in turn [ codes, 2 a byte, the first in the high half: 32 | scale code: 1 ]
//   nested   [ nested, fp32: ceil(S/256), of S = ceil(n/64) scales | offset, fp32 ]
//
// about 4.13 bits a value. So a matrix whose rows are whole blocks has blocks of the shape (rows, columns / 64, 33), of
// which ranks can hold parts; all of them hold nested. The offset's sum is that of one thread, whatever the number of
// threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::kernels {

inline constexpr int64_t kNf4Block = 64;       // values that share a scale
inline constexpr int64_t kNf4BlockBytes = 33;  // of a block

struct Nf4 {
  at::Tensor blocks, nested;  // uint8, flat, contiguous
};

// Of a weight of so many values.
int64_t nf4_block_bytes(int64_t numel);
int64_t nf4_nested_bytes(int64_t numel);

// `values`: finite, fp32, contiguous, on the CPU, as is what it writes to: of the lengths above.
void quantize_nf4(const at::Tensor& values, const Nf4& to);

// The part of a matrix whose blocks are at hand. Where it is not the whole, rows are whole blocks, here and there.
struct Nf4Part {
  int64_t rows = 0, columns = 0;  // here
  // Of the whole: `stacked` matrices below each other, of each of which rows / stacked are here.
  int64_t stacked = 1;
  int64_t rows_of_each = 0, first_row = 0;
  int64_t columns_of_all = 0, first_column = 0;

  static Nf4Part whole(int64_t rows, int64_t columns) {
    return {.rows = rows, .columns = columns, .rows_of_each = rows, .columns_of_all = columns};
  }
  bool is_whole() const { return columns == columns_of_all && rows == stacked * rows_of_each; }
  int64_t numel_of_whole() const { return stacked * rows_of_each * columns_of_all; }
  int64_t block_of_whole(int64_t block) const;  // which one this is of the whole's
};

// The part, (rows, columns), in fp32, bf16 or fp16, on the device of the blocks.
at::Tensor dequantize_nf4(const Nf4& of, const Nf4Part& part, at::ScalarType dtype);

}  // namespace tessera::kernels

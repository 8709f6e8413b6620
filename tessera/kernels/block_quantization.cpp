#include "tessera/kernels/block_quantization.h"

#include <ATen/Parallel.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/where.h>

#include "tessera/base/error.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kScaleBytes = sizeof(float);
constexpr int64_t kChunk = 128;  // blocks that one thread takes at a time: what it makes of them stays in its cache

int64_t blocks_of(int64_t numel) { return (numel + kQuantizedBlock - 1) / kQuantizedBlock; }

// Blocks of one length.
struct Blocks {
  at::Tensor values;   // [blocks, length]
  at::Tensor scales;   // [blocks, 1]
  at::Tensor numbers;  // [blocks, length * bits / 8], bytes
};

// Calls work(blocks) for parts that together are the tensor.
template <class Work>
void for_each_part(const at::Tensor& values, int bits, const at::Tensor& quantized, const Work& work) {
  const int64_t numel = values.numel(), blocks = blocks_of(numel), whole = numel / kQuantizedBlock;
  TESSERA_INVARIANT((bits == 4 || bits == 8) && numel % 8 == 0);
  TESSERA_INVARIANT(values.is_contiguous() && quantized.is_contiguous());
  TESSERA_INVARIANT(quantized.scalar_type() == at::kByte && quantized.numel() == quantized_bytes(numel, bits));
  const at::Tensor scales = quantized.narrow(0, 0, blocks * kScaleBytes).view(at::kFloat);
  const at::Tensor numbers = quantized.narrow(0, blocks * kScaleBytes, numel * bits / 8);
  const auto part = [&](int64_t first, int64_t count, int64_t length) {
    const int64_t begin = first * kQuantizedBlock;
    work(Blocks{.values = values.narrow(0, begin, count * length).view({count, length}),
                .scales = scales.narrow(0, first, count).unsqueeze(1),
                .numbers = numbers.narrow(0, begin * bits / 8, count * length * bits / 8).view({count, -1})});
  };
  if (!values.is_cpu()) {
    if (whole > 0) part(0, whole, kQuantizedBlock);
  } else {
    at::parallel_for(0, (whole + kChunk - 1) / kChunk, 1, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        part(chunk * kChunk, std::min(kChunk, whole - chunk * kChunk), kQuantizedBlock);
      }
    });
  }
  if (whole < blocks) part(whole, 1, numel - whole * kQuantizedBlock);
}

// As fp32.
at::Tensor came_out(const Blocks& blocks, int bits) {
  at::Tensor numbers;
  if (bits == 8) {
    numbers = blocks.numbers.view(at::kChar).to(at::kFloat);
  } else {
    numbers = at::empty(blocks.values.sizes(), blocks.scales.options());
    const at::Tensor pairs = numbers.view({numbers.size(0), -1, 2});
    pairs.select(2, 0).copy_(at::bitwise_and(blocks.numbers, 15));
    pairs.select(2, 1).copy_(at::bitwise_right_shift(blocks.numbers, 4));
    numbers.sub_(8);
  }
  return numbers.mul_(blocks.scales);
}

}  // namespace

int64_t quantized_bytes(int64_t numel, int bits) { return blocks_of(numel) * kScaleBytes + numel * bits / 8; }

void quantize(const at::Tensor& values, int bits, const at::Tensor& quantized) {
  const double largest = bits == 8 ? 127 : 7;
  for_each_part(values, bits, quantized, [&](const Blocks& blocks) {
    const at::Tensor given = blocks.values.to(at::kFloat);
    blocks.scales.copy_(given.abs().amax(1, /*keepdim=*/true).div_(largest));
    // A block of zeros has no scale to divide by; and what is not finite, its scale says.
    const at::Tensor divisor = at::where(at::eq(blocks.scales, 0), 1, blocks.scales);
    const at::Tensor numbers =
        at::div(given, divisor).round_().nan_to_num_(0, 0, 0).clamp_(-largest, largest);  // a tiny scale is not exact
    if (bits == 8) {
      blocks.numbers.view(at::kChar).copy_(numbers);
    } else {
      const at::Tensor pairs = numbers.add_(8).to(at::kByte).view({numbers.size(0), -1, 2});
      blocks.numbers.copy_(pairs.select(2, 0).add(pairs.select(2, 1), 16));
    }
  });
}

void dequantize(const at::Tensor& quantized, int bits, const at::Tensor& values) {
  for_each_part(values, bits, quantized, [&](const Blocks& blocks) { blocks.values.copy_(came_out(blocks, bits)); });
}

void add_dequantized(const at::Tensor& quantized, int bits, const at::Tensor& sum) {
  for_each_part(sum, bits, quantized, [&](const Blocks& blocks) { blocks.values.add_(came_out(blocks, bits)); });
}

}  // namespace tessera::kernels

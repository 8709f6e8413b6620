#include "tessera/kernels/nf4.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/kernels/every_cpu.h"

namespace tessera::kernels {
namespace {

constexpr int64_t kBlock = kNf4Block, kCodes = kBlock / 2;
static_assert(kCodes + 1 == kNf4BlockBytes);
constexpr int64_t kNestedBlock = 256;  // scales that share one of theirs
constexpr int64_t kBlocksAThread = 512;
constexpr float kSmallest = 1e-38f;  // of what is divided by

constexpr std::array<float, 16> kNf4 = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};

constexpr std::array<float, 15> kNf4Bounds = [] {
  std::array<float, 15> bounds{};
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i] = (kNf4[i] + kNf4[i + 1]) / 2;
  return bounds;
}();

int64_t blocks_of(int64_t count, int64_t block) { return (count + block - 1) / block; }

bool are_bytes(const at::Tensor& tensor, int64_t count) {
  return tensor.is_contiguous() && tensor.scalar_type() == at::kByte && tensor.numel() == count;
}

// The dynamic map, and, by 65,536 cells between -1 and 1, the code of its number that is nearest to a cell's left end:
// bitsandbytes looks scales up in such a table, which near a bound is not the nearest number.
struct DynamicMap {
  static constexpr int kCells = 65536;
  std::array<float, 256> numbers;
  std::array<uint8_t, kCells> codes;

  DynamicMap() {
    std::vector<float> all{0, 1};
    for (int exponent = 0; exponent < 7; ++exponent) {
      const at::Tensor ends = at::linspace(0.1, 1, (int64_t{1} << exponent) + 1, at::kFloat);
      const float* const end = ends.const_data_ptr<float>();
      const auto power = static_cast<float>(std::pow(10.0, exponent - 6));
      for (int64_t i = 0; i + 1 < ends.numel(); ++i) {
        const float number = power * ((end[i] + end[i + 1]) / 2.0f);
        all.insert(all.end(), {number, -number});
      }
    }
    std::sort(all.begin(), all.end());
    TESSERA_INVARIANT(all.size() == numbers.size());
    std::copy(all.begin(), all.end(), numbers.begin());
    size_t code = 0;
    for (int cell = 0; cell < kCells; ++cell) {
      const float left = -1.0f + (2.0f * static_cast<float>(cell)) / static_cast<float>(kCells - 1);
      while (code + 1 < numbers.size() && 0.5f * (numbers[code] + numbers[code + 1]) < left) ++code;
      codes[static_cast<size_t>(cell)] = static_cast<uint8_t>(code);
    }
  }

  uint8_t code_of(float value) const {
    value = std::min(std::max(-1.0f, value), 1.0f);  // of NaN, where a denormal number has no inverse: -1
    return codes[static_cast<uint16_t>((value + 1.0f) * 0.5f * static_cast<float>(kCells - 1) + 0.5f)];
  }
};

const DynamicMap& dynamic_map() {
  static const DynamicMap map;
  return map;
}

float magnitude_of(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

// Of whole blocks: codes and scales.
TESSERA_EVERY_CPU
void quantize_blocks(const float* values, int64_t blocks, uint8_t* codes, float* scales) {
  for (int64_t block = 0; block < blocks; ++block, values += kBlock, codes += kNf4BlockBytes) {
    float largest = 0;
    for (int64_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
    scales[block] = largest;
    const float inverse = 1.0f / std::max(largest, kSmallest);
    int32_t indices[kBlock];
    for (int64_t i = 0; i < kBlock; ++i) {
      const float value = std::min(std::max(values[i] * inverse, -1.0f), 1.0f);
      int32_t index = 0;
      for (const float bound : kNf4Bounds) index += bound < value ? 1 : 0;
      indices[i] = index;
    }
    for (int64_t i = 0; i < kCodes; ++i) {
      codes[i] = static_cast<uint8_t>(indices[2 * i] << 4 | indices[2 * i + 1]);
    }
  }
}

// The last block, where it is shorter than others: bitsandbytes divides here and multiplies there.
void quantize_rest(const float* values, int64_t count, uint8_t* codes, float* scale) {
  *scale = std::max(magnitude_of(values, count), kSmallest);
  const auto code_of = [&](int64_t i) -> int {
    const float value = i < count ? std::clamp(values[i] / *scale, -1.0f, 1.0f) : 0.0f;
    return static_cast<int>(std::count_if(kNf4Bounds.begin(), kNf4Bounds.end(), [&](float b) { return b < value; }));
  };
  for (int64_t i = 0; i < count; i += 2) codes[i / 2] = static_cast<uint8_t>(code_of(i) << 4 | code_of(i + 1));
  std::fill(codes + (count + 1) / 2, codes + kCodes, uint8_t{0});
}

// LibTorch's mean as one thread adds it up.
float mean_of(const at::Tensor& values) {
#ifdef _OPENMP
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
#endif
  const float mean = values.mean().item<float>();
#ifdef _OPENMP
  omp_set_num_threads(threads);
#endif
  return mean;
}

void quantize_scales(const at::Tensor& scales, uint8_t* blocks, uint8_t* nested) {
  const float offset = mean_of(scales);
  const int64_t all = scales.numel(), nested_blocks = blocks_of(all, kNestedBlock);
  const at::Tensor less = scales.sub(offset);
  const float* const value = less.const_data_ptr<float>();
  const DynamicMap& map = dynamic_map();
  for (int64_t block = 0; block < nested_blocks; ++block) {
    const int64_t first = block * kNestedBlock, count = std::min(kNestedBlock, all - first);
    const float largest = magnitude_of(value + first, count);
    std::memcpy(nested + 4 * block, &largest, 4);
    const float inverse = 1.0f / largest;
    for (int64_t i = first; i < first + count; ++i) {
      blocks[i * kNf4BlockBytes + kCodes] = largest == 0 ? 0 : map.code_of(value[i] * inverse);
    }
  }
  std::memcpy(nested + 4 * nested_blocks, &offset, 4);
}

// `first`: of a block.
template <class Number>
void dequantize_blocks(const uint8_t* blocks, const float* scales, int64_t first, int64_t end, Number* out) {
  for (int64_t at = first; at < end; at += kBlock) {
    const uint8_t* const codes = blocks + at / kBlock * kNf4BlockBytes;
    std::array<Number, 16> numbers;
    const float scale = scales[at / kBlock];
    for (size_t code = 0; code < numbers.size(); ++code) numbers[code] = static_cast<Number>(kNf4[code] * scale);
    const int64_t stop = std::min(at + kBlock, end);
    int64_t i = at;
    for (; i + 1 < stop; i += 2) {
      const uint8_t pair = codes[(i - at) / 2];
      out[i] = numbers[pair >> 4];
      out[i + 1] = numbers[pair & 15];
    }
    if (i < stop) out[i] = numbers[codes[(i - at) / 2] >> 4];
  }
}

// fp32, on the CPU, as both tensors are.
at::Tensor dequantized_scales(const Nf4& of, const Nf4Part& part) {
  const int64_t here = blocks_of(part.rows * part.columns, kBlock);
  const at::Tensor scales = at::empty({here}, at::kFloat);
  float* const scale = scales.mutable_data_ptr<float>();
  const auto* const blocks = of.blocks.const_data_ptr<uint8_t>();
  const auto* const nested_bytes = of.nested.const_data_ptr<uint8_t>();
  const auto nested_at = [&](int64_t i) {
    float number = 0;
    std::memcpy(&number, nested_bytes + 4 * i, 4);
    return number;
  };
  const float offset = nested_at(of.nested.numel() / 4 - 1);
  const DynamicMap& map = dynamic_map();
  for (int64_t i = 0; i < here; ++i) {
    const float number = map.numbers[blocks[i * kNf4BlockBytes + kCodes]];
    scale[i] = number * nested_at(part.block_of_whole(i) / kNestedBlock) + offset;
  }
  return scales;
}

template <class Number>
void dequantize_into(const at::Tensor& out, const Nf4& of, const at::Tensor& scales) {
  const float* const scale = scales.const_data_ptr<float>();
  const auto* const blocks = of.blocks.const_data_ptr<uint8_t>();
  auto* const number = out.mutable_data_ptr<Number>();
  at::parallel_for(0, scales.numel(), kBlocksAThread, [&](int64_t begin, int64_t end) {
    dequantize_blocks(blocks, scale, begin * kBlock, std::min(end * kBlock, out.numel()), number);
  });
}

// By LibTorch's operators, where the bytes are not in the host's memory: the same products.
at::Tensor dequantized_on_device(const Nf4& of, const Nf4Part& part, at::ScalarType dtype) {
  const at::Device device = of.blocks.device();
  const int64_t numel = part.rows * part.columns;
  const at::Tensor scales =
      dequantized_scales({.blocks = of.blocks.to(at::kCPU), .nested = of.nested.to(at::kCPU)}, part).to(device);
  const at::Tensor numbers = at::tensor(at::ArrayRef<float>(kNf4), at::kFloat).to(device);
  const at::Tensor pairs = of.blocks.view({-1, kNf4BlockBytes}).narrow(1, 0, kCodes).reshape({-1});
  const at::Tensor codes = at::stack({pairs.bitwise_right_shift(4), pairs.bitwise_and(15)}, 1).view({-1});
  const at::Tensor values = numbers.index_select(0, codes.narrow(0, 0, numel).to(at::kInt));
  return values.mul_(scales.repeat_interleave(kBlock).narrow(0, 0, numel)).to(dtype);
}

}  // namespace

int64_t nf4_block_bytes(int64_t numel) { return kNf4BlockBytes * blocks_of(numel, kBlock); }

int64_t nf4_nested_bytes(int64_t numel) { return 4 * (blocks_of(blocks_of(numel, kBlock), kNestedBlock) + 1); }

int64_t Nf4Part::block_of_whole(int64_t block) const {
  if (is_whole()) return block;
  const int64_t in_row = columns / kNf4Block, row = block / in_row, rows_here = rows / stacked;
  const int64_t row_of_whole = row / rows_here * rows_of_each + first_row + row % rows_here;
  return (row_of_whole * columns_of_all + first_column) / kNf4Block + block % in_row;
}

void quantize_nf4(const at::Tensor& values, const Nf4& to) {
  TESSERA_INVARIANT(values.is_contiguous() && values.scalar_type() == at::kFloat && values.device().is_cpu());
  TESSERA_INVARIANT(are_bytes(to.blocks, nf4_block_bytes(values.numel())));
  TESSERA_INVARIANT(are_bytes(to.nested, nf4_nested_bytes(values.numel())));
  const float* const value = values.const_data_ptr<float>();
  auto* const blocks = to.blocks.mutable_data_ptr<uint8_t>();
  const int64_t all = blocks_of(values.numel(), kBlock), whole = values.numel() / kBlock;
  const at::Tensor scales = at::empty({all}, at::kFloat);
  float* const scale = scales.mutable_data_ptr<float>();
  at::parallel_for(0, whole, kBlocksAThread, [&](int64_t begin, int64_t end) {
    quantize_blocks(value + begin * kBlock, end - begin, blocks + begin * kNf4BlockBytes, scale + begin);
  });
  if (whole < all) {
    const int64_t first = whole * kBlock;
    quantize_rest(value + first, values.numel() - first, blocks + whole * kNf4BlockBytes, scale + whole);
  }
  quantize_scales(scales, blocks, to.nested.mutable_data_ptr<uint8_t>());
}

at::Tensor dequantize_nf4(const Nf4& of, const Nf4Part& part, at::ScalarType dtype) {
  TESSERA_INVARIANT(are_bytes(of.blocks, nf4_block_bytes(part.rows * part.columns)));
  TESSERA_INVARIANT(are_bytes(of.nested, nf4_nested_bytes(part.numel_of_whole())));
  TESSERA_INVARIANT(part.is_whole() || (part.columns % kBlock == 0 && part.columns_of_all % kBlock == 0 &&
                                        part.first_column % kBlock == 0));
  if (!of.blocks.device().is_cpu()) return dequantized_on_device(of, part, dtype).view({part.rows, part.columns});
  const at::Tensor out = at::empty({part.rows, part.columns}, dtype), scales = dequantized_scales(of, part);
  if (dtype == at::kFloat) {
    dequantize_into<float>(out, of, scales);
  } else if (dtype == at::kBFloat16) {
    dequantize_into<c10::BFloat16>(out, of, scales);
  } else {
    TESSERA_INVARIANT(dtype == at::kHalf);
    dequantize_into<c10::Half>(out, of, scales);
  }
  return out;
}

}  // namespace tessera::kernels

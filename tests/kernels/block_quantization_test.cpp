#include "tessera/kernels/block_quantization.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera::kernels::block_quantization_test {
namespace {

constexpr int64_t kNumel = 3 * kQuantizedBlock + 40;  // the last block is short

// Blocks of very different sizes, with both signs.
at::Tensor numbers(int64_t numel = kNumel) {
  const at::Tensor n = at::arange(numel, at::kFloat);
  return at::sin(n * 1.7 + 0.3) * at::exp(at::floor(n / kQuantizedBlock) * 3);
}

at::Tensor round_trip(const at::Tensor& values, int bits) {
  const at::Tensor quantized = at::empty({quantized_bytes(values.numel(), bits)}, at::kByte);
  quantize(values, bits, quantized);
  at::Tensor back = at::full_like(values, -1);
  dequantize(quantized, bits, back);
  return back;
}

// As the header says, element by element.
at::Tensor by_formula(const at::Tensor& values, int bits) {
  at::Tensor result = values.to(at::kFloat).clone();
  auto* const x = result.mutable_data_ptr<float>();
  const float n = bits == 8 ? 127 : 7;
  for (int64_t begin = 0; begin < result.numel(); begin += kQuantizedBlock) {
    const int64_t end = std::min(begin + kQuantizedBlock, result.numel());
    float largest = 0;
    for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
    const float scale = largest / n;
    for (int64_t i = begin; i < end; ++i) x[i] = scale == 0 ? 0 : std::nearbyint(x[i] / scale) * scale;
  }
  return result.to(values.scalar_type());
}

TEST(BlockQuantization, IsWhatTheFormulaSays) {
  for (const int bits : {4, 8}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor values = numbers().to(dtype);
      const at::Tensor back = round_trip(values, bits);
      EXPECT_TRUE(at::equal(back, by_formula(values, bits))) << bits << " bits of " << dtype;
      EXPECT_FALSE(at::equal(back, values));
    }
  }
}

TEST(BlockQuantization, NoElementIsOffByMoreThanHalfItsBlocksScale) {
  for (const int bits : {4, 8}) {
    const at::Tensor values = numbers(2 * kQuantizedBlock).view({2, -1});
    const at::Tensor off = (round_trip(values.view({-1}), bits).view({2, -1}) - values).abs().amax(1);
    const at::Tensor scale = values.abs().amax(1) / (bits == 8 ? 127 : 7);
    EXPECT_TRUE((off <= scale / 2 * 1.0001).all().item<bool>()) << bits;
    EXPECT_TRUE((off > scale / 4).all().item<bool>()) << bits;
  }
}

TEST(BlockQuantization, TakesBytesOfItsNumbersAndScales) {
  EXPECT_EQ(quantized_bytes(kQuantizedBlock, 8), kQuantizedBlock + 4);
  EXPECT_EQ(quantized_bytes(kQuantizedBlock, 4), kQuantizedBlock / 2 + 4);
  EXPECT_EQ(quantized_bytes(kQuantizedBlock + 8, 8), kQuantizedBlock + 8 + 2 * 4);
  EXPECT_EQ(quantized_bytes(0, 8), 0);
}

TEST(BlockQuantization, AddsToASum) {
  for (const int bits : {4, 8}) {
    const at::Tensor quantized = at::empty({quantized_bytes(kNumel, bits)}, at::kByte);
    quantize(numbers(), bits, quantized);
    const at::Tensor sum = at::full({kNumel}, 2, at::kFloat);
    add_dequantized(quantized, bits, sum);
    EXPECT_TRUE(at::equal(sum, by_formula(numbers(), bits) + 2));
  }
}

TEST(BlockQuantization, ZerosStayZerosAndWhatIsNotFiniteSpoilsItsBlockAlone) {
  for (const int bits : {4, 8}) {
    EXPECT_TRUE(at::equal(round_trip(at::zeros({kNumel}), bits), at::zeros({kNumel})));
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      at::Tensor values = numbers();
      values[kQuantizedBlock + 3] = bad;
      const at::Tensor back = round_trip(values, bits);
      EXPECT_TRUE(back.narrow(0, kQuantizedBlock, kQuantizedBlock).isnan().all().item<bool>());
      EXPECT_TRUE(
          at::equal(back.narrow(0, 0, kQuantizedBlock), by_formula(numbers(), bits).narrow(0, 0, kQuantizedBlock)));
      EXPECT_TRUE(back.narrow(0, 2 * kQuantizedBlock, kQuantizedBlock).isfinite().all().item<bool>());
    }
  }
}

// The scale of numbers near the smallest there are has few bits: what is divided by it may come out too large.
TEST(BlockQuantization, NumbersNearTheSmallestKeepTheirSigns) {
  const float least = std::numeric_limits<float>::denorm_min();
  const at::Tensor values = at::full({8}, least) * at::tensor({190.F, -190.F, 3.F, 0.F, 100.F, -7.F, 1.F, -1.F});
  for (const int bits : {4, 8}) {
    const at::Tensor back = round_trip(values, bits);
    EXPECT_TRUE((back * values >= 0).all().item<bool>());
    EXPECT_TRUE((back.abs() <= values.abs().max()).all().item<bool>());
  }
}

// More blocks than one thread takes at a time.
TEST(BlockQuantization, ManyBlocksAreAsEachAlone) {
  const at::Tensor values =
      numbers(8).repeat({500 * kQuantizedBlock / 8}) * at::arange(500 * kQuantizedBlock).fmod(977);
  EXPECT_TRUE(at::equal(round_trip(values, 8), by_formula(values, 8)));
}

}  // namespace
}  // namespace tessera::kernels::block_quantization_test

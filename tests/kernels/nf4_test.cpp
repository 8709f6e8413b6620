// The bits are compared with bitsandbytes in test_nf4_parity.py; here is what needs no other program.
#include "tessera/kernels/nf4.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace tessera::kernels::nf4_test {
namespace {

at::Tensor quantized(const at::Tensor& values) {
  const at::Tensor bytes = at::full({nf4_bytes(values.numel())}, 0xAB, at::kByte);
  quantize_nf4(values, bytes);
  return bytes;
}

// The layout in the header: 64 values have 32 bytes of codes, one scale, its padding, one nested scale and the offset.
TEST(Nf4, BytesAreThoseOfTheFormula) {
  EXPECT_EQ(nf4_bytes(64), 32 + 1 + 3 + 4 + 4);
  EXPECT_EQ(nf4_bytes(1), 1 + 1 + 2 + 4 + 4);
  EXPECT_EQ(nf4_bytes(64 * 256), 32 * 256 + 256 + 4 + 4);
  EXPECT_EQ(nf4_bytes(64 * 256 + 1), 32 * 256 + 1 + 257 + 2 + 8 + 4);
  EXPECT_NEAR(8.0 * static_cast<double>(nf4_bytes(1 << 24)) / (1 << 24), 4.127, 0.001);  // Dettmers et al., section 3
}

// Half the widest gap between two of the 16 numbers, 0.15, times the largest magnitude of a block, and what the 8 bits
// of the scale lose.
TEST(Nf4, IsNoFartherThanHalfAGap) {
  at::manual_seed(1);
  for (const int64_t numel : {2, 63, 64, 65, 1000, 64 * 256 + 7, 300'000}) {
    const at::Tensor values = at::randn({numel}) * 0.02;
    const at::Tensor back = dequantize_nf4(quantized(values), {numel}, at::kFloat);
    const double largest = values.abs().max().item<double>();
    EXPECT_LT((back - values).abs().max().item<double>(), 0.17 * largest) << numel;
    EXPECT_GT((back - values).abs().sum().item<double>(), 0) << numel;
  }
}

TEST(Nf4, ZerosStayZeros) {
  const at::Tensor back = dequantize_nf4(quantized(at::zeros({200})), {10, 20}, at::kFloat);
  EXPECT_EQ(back.abs().max().item<float>(), 0);
}

TEST(Nf4, HasTheSameBitsWhateverTheNumberOfThreads) {
  at::manual_seed(2);
  const at::Tensor values = at::randn({3'000'000});  // more scales than LibTorch adds up on one thread
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> all;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    all.push_back(quantized(values));
    all.push_back(dequantize_nf4(all.front(), {3'000'000}, at::kBFloat16));
    EXPECT_EQ(at::get_num_threads(), count);
  }
  at::set_num_threads(threads);
  for (size_t i = 2; i < all.size(); ++i) EXPECT_TRUE(at::equal(all[i], all[i % 2])) << i;
}

TEST(Nf4, RoundsOnceToTheDtypeThatIsAskedFor) {
  at::manual_seed(3);
  const at::Tensor bytes = quantized(at::randn({4096}));
  const at::Tensor wide = dequantize_nf4(bytes, {4096}, at::kFloat);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    EXPECT_TRUE(at::equal(dequantize_nf4(bytes, {4096}, dtype), wide.to(dtype)));
  }
}

}  // namespace
}  // namespace tessera::kernels::nf4_test

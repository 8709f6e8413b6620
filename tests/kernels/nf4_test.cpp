// The bits are compared with bitsandbytes in test_nf4_parity.py; here is what needs no other program.
#include "tessera/kernels/nf4.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace tessera::kernels::nf4_test {
namespace {

Nf4 quantized(const at::Tensor& values) {
  const Nf4 bytes{.blocks = at::full({nf4_block_bytes(values.numel())}, 0xAB, at::kByte),
                  .nested = at::full({nf4_nested_bytes(values.numel())}, 0xAB, at::kByte)};
  quantize_nf4(values, bytes);
  return bytes;
}

at::Tensor dequantized(const Nf4& bytes, int64_t numel, at::ScalarType dtype) {
  return dequantize_nf4(bytes, Nf4Part::whole(1, numel), dtype).view({numel});
}

// The layout in the header: 64 values have 32 bytes of codes and one scale, 256 scales one nested scale, beside the
// offset.
TEST(Nf4, BytesAreThoseOfTheFormula) {
  using Bytes = std::pair<int64_t, int64_t>;
  const auto bytes = [](int64_t numel) { return Bytes(nf4_block_bytes(numel), nf4_nested_bytes(numel)); };
  EXPECT_EQ(bytes(64), Bytes(32 + 1, 4 + 4));
  EXPECT_EQ(bytes(1), Bytes(32 + 1, 4 + 4));
  EXPECT_EQ(bytes(64 * 256), Bytes((32 + 1) * 256, 4 + 4));
  EXPECT_EQ(bytes(64 * 256 + 1), Bytes((32 + 1) * 257, 8 + 4));
  const int64_t all = nf4_block_bytes(1 << 24) + nf4_nested_bytes(1 << 24);
  EXPECT_NEAR(8.0 * static_cast<double>(all) / (1 << 24), 4.127, 0.001);  // Dettmers et al., section 3
}

// Half the widest gap between two of the 16 numbers, 0.15, times the largest magnitude of a block, and what the 8 bits
// of the scale lose.
TEST(Nf4, IsNoFartherThanHalfAGap) {
  at::manual_seed(1);
  for (const int64_t numel : {2, 63, 64, 65, 1000, 64 * 256 + 7, 300'000}) {
    const at::Tensor values = at::randn({numel}) * 0.02;
    const at::Tensor back = dequantized(quantized(values), numel, at::kFloat);
    const double largest = values.abs().max().item<double>();
    EXPECT_LT((back - values).abs().max().item<double>(), 0.17 * largest) << numel;
    EXPECT_GT((back - values).abs().sum().item<double>(), 0) << numel;
  }
}

TEST(Nf4, ZerosStayZeros) {
  const at::Tensor back = dequantized(quantized(at::zeros({200})), 200, at::kFloat);
  EXPECT_EQ(back.abs().max().item<float>(), 0);
}

TEST(Nf4, HasTheSameBitsWhateverTheNumberOfThreads) {
  at::manual_seed(2);
  const at::Tensor values = at::randn({3'000'000});  // more scales than LibTorch adds up on one thread
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> all;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    const Nf4 bytes = quantized(values);
    all.insert(all.end(), {bytes.blocks, bytes.nested, dequantized(bytes, 3'000'000, at::kBFloat16)});
    EXPECT_EQ(at::get_num_threads(), count);
  }
  at::set_num_threads(threads);
  for (size_t i = 3; i < all.size(); ++i) EXPECT_TRUE(at::equal(all[i], all[i % 3])) << i;
}

TEST(Nf4, RoundsOnceToTheDtypeThatIsAskedFor) {
  at::manual_seed(3);
  const Nf4 bytes = quantized(at::randn({4096}));
  const at::Tensor wide = dequantized(bytes, 4096, at::kFloat);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    EXPECT_TRUE(at::equal(dequantized(bytes, 4096, dtype), wide.to(dtype)));
  }
}

// Of three matrices below each other, some rows of each; of one, some columns.
TEST(Nf4, PartsAreThoseOfTheWhole) {
  at::manual_seed(4);
  constexpr int64_t kEach = 50, kColumns = 384;
  const Nf4 all = quantized(at::randn({3 * kEach * kColumns}) * at::rand({3 * kEach * kColumns}).pow(4));
  const at::Tensor want = dequantize_nf4(all, Nf4Part::whole(3 * kEach, kColumns), at::kFloat);
  const at::Tensor blocks = all.blocks.view({3, kEach, kColumns / kNf4Block, kNf4BlockBytes});
  ASSERT_EQ(all.nested.numel(), 4 * (4 + 1));  // so that parts are scaled by different ones

  const Nf4 rows{.blocks = blocks.narrow(1, 20, 17).reshape({-1}), .nested = all.nested};
  const Nf4Part of_rows{.rows = 3 * 17,
                        .columns = kColumns,
                        .stacked = 3,
                        .rows_of_each = kEach,
                        .first_row = 20,
                        .columns_of_all = kColumns};
  EXPECT_TRUE(at::equal(dequantize_nf4(rows, of_rows, at::kFloat).view({3, 17, kColumns}),
                        want.view({3, kEach, kColumns}).narrow(1, 20, 17)));

  const Nf4 columns{.blocks = blocks.narrow(2, 2, 3).reshape({-1}), .nested = all.nested};
  Nf4Part of_columns = Nf4Part::whole(3 * kEach, kColumns);
  of_columns.columns = 3 * kNf4Block;
  of_columns.first_column = 2 * kNf4Block;
  EXPECT_TRUE(at::equal(dequantize_nf4(columns, of_columns, at::kBFloat16),
                        want.narrow(1, 2 * kNf4Block, 3 * kNf4Block).to(at::kBFloat16)));
}

}  // namespace
}  // namespace tessera::kernels::nf4_test

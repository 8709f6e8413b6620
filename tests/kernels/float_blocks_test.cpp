// Against LibTorch's own conversions, bit by bit.
#include "tessera/kernels/float_blocks.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tessera::kernels::float_blocks_test {
namespace {

constexpr int64_t kNumel = 1003;  // no multiple of any register's width

// Numbers of all magnitudes, ties between two bf16 and two fp16, infinities.
at::Tensor values() {
  at::Tensor all = at::randn({kNumel}) * at::pow(10, at::randint(-9, 9, {kNumel}));
  const std::vector<float> special{1 + 1.f / 256, 1 + 3.f / 256, 1 + 1.f / 2048, 1 + 3.f / 2048, 0,
                                   -0.f,          INFINITY,      65519,          65520};
  for (size_t i = 0; i < special.size(); ++i) all[static_cast<int64_t>(i)] = special[i];
  return all;
}

class FloatBlocksOf : public testing::TestWithParam<at::ScalarType> {};

TEST_P(FloatBlocksOf, WidensAsLibTorch) {
  const at::Tensor narrow = values().to(GetParam());
  std::vector<float> buffer(kNumel);
  const float* const wide = FloatBlocks(narrow).widened(3, kNumel - 3, buffer.data());
  const at::Tensor expected = narrow.to(at::kFloat).slice(0, 3);
  for (int64_t i = 0; i < kNumel - 3; ++i) ASSERT_EQ(wide[i], expected[i].item<float>()) << i;
}

TEST_P(FloatBlocksOf, NarrowsAsLibTorchAlsoPastTheCaches) {
  const at::Tensor wide = values(), expected = wide.to(GetParam());
  for (const int64_t first : {0, 1, 32}) {  // aligned for streams, and not
    at::Tensor narrowed = at::zeros({kNumel}, GetParam()), streamed = at::zeros({kNumel}, GetParam());
    FloatBlocks(narrowed).narrow(first, kNumel - first, wide.const_data_ptr<float>() + first);
    FloatBlocks(streamed).stream(first, kNumel - first, wide.const_data_ptr<float>() + first);
    FloatBlocks::finish_streams();
    EXPECT_TRUE(at::equal(narrowed.slice(0, first), expected.slice(0, first))) << first;
    EXPECT_TRUE(at::equal(streamed.slice(0, first), expected.slice(0, first))) << first;
    EXPECT_TRUE(at::equal(streamed.slice(0, 0, first), at::zeros({first}, GetParam())));
  }
}

TEST_P(FloatBlocksOf, NotANumberStaysOne) {
  const at::Tensor wide = at::full({64}, NAN);
  at::Tensor narrowed = at::zeros({64}, GetParam()), streamed = at::zeros({64}, GetParam());
  FloatBlocks(narrowed).narrow(0, 64, wide.const_data_ptr<float>());
  FloatBlocks(streamed).stream(0, 64, wide.const_data_ptr<float>());
  FloatBlocks::finish_streams();
  EXPECT_TRUE(at::isnan(narrowed).all().item<bool>());
  EXPECT_TRUE(at::isnan(streamed).all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, FloatBlocksOf, testing::Values(at::kFloat, at::kBFloat16, at::kHalf));

}  // namespace
}  // namespace tessera::kernels::float_blocks_test

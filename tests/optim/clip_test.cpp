#include "tessera/optim/clip.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace tessera::optim::clip_test {
namespace {

TEST(SumOfSquares, AgreesWithDoublePrecision) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor values = at::sin(at::arange(200'003, at::kFloat)).to(dtype);
    const double want = values.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(sum_of_squares(values), want, 1e-9 * want);
  }
}

TEST(SumOfSquares, OfNothingIsZero) { EXPECT_EQ(sum_of_squares(at::empty({0})), 0); }

TEST(SumOfSquares, ShowsWhatIsNotFinite) {
  EXPECT_TRUE(std::isinf(sum_of_squares(at::full({3}, std::numeric_limits<float>::infinity()))));
  EXPECT_TRUE(std::isnan(sum_of_squares(at::full({3}, std::numeric_limits<float>::quiet_NaN()))));
}

TEST(SumOfSquares, DoesNotDependOnThreads) {
  const at::Tensor values = at::sin(at::arange(1'000'003, at::kFloat));
  at::set_num_threads(1);
  const double one = sum_of_squares(values);
  at::set_num_threads(4);
  EXPECT_EQ(sum_of_squares(values), one);
}

TEST(ClipDivisor, BringsTheNormDownToTheMaximumAndNeverUp) {
  EXPECT_EQ(clip_divisor(0.5, 1), 1);
  EXPECT_DOUBLE_EQ(clip_divisor(10, 2), (10 + 1e-6) / 2);  // DeepSpeed's formula
  EXPECT_EQ(clip_divisor(10, 0), 1);                       // 0: no clipping
}

TEST(ClipFactor, BringsTheNormDownToTheMaximumAndNeverUp) {
  const auto factor = [](double norm, double max_norm) {
    return clip_factor(at::scalar_tensor(norm), max_norm, 0.5).item<float>();
  };
  EXPECT_EQ(factor(0.25, 1), 1);
  EXPECT_FLOAT_EQ(factor(7.5, 2), 0.25F);  // 2 / (7.5 + 0.5)
  EXPECT_EQ(factor(7.5, 0), 0);            // 0 here as in torch: nothing is left
}

}  // namespace
}  // namespace tessera::optim::clip_test

// Against LibTorch's sums in fp32, in the same order.
#include "tessera/comm/ordered_sum.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

namespace tessera::comm::ordered_sum_test {
namespace {

at::Tensor expected_sum(const std::vector<at::Tensor>& parts, double scale, at::ScalarType dtype) {
  const at::ScalarType wide = parts[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = parts[0].to(wide);
  for (size_t part = 1; part < parts.size(); ++part) sum = sum + parts[part].to(wide);
  return (sum * scale).to(dtype);
}

struct Case {
  at::ScalarType from;
  at::ScalarType to;
};

class OrderedSum : public testing::TestWithParam<Case> {};

TEST_P(OrderedSum, IsThatOfLibTorch) {
  for (const int64_t numel : {0, 1, 1023, 1025, 700'001}) {  // the last is stored past the caches
    for (const int64_t count : {1, 2, 3, 5}) {
      std::vector<at::Tensor> parts;
      for (int64_t part = 0; part < count; ++part) parts.push_back(at::randn({numel}).to(GetParam().from));
      for (const double scale : {1.0, 1.0 / static_cast<double>(count)}) {
        at::Tensor out = at::empty({numel}, GetParam().to);
        ordered_sum(parts, scale, out);
        EXPECT_TRUE(at::equal(out, expected_sum(parts, scale, GetParam().to))) << numel << " of " << count;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, OrderedSum,
                         testing::Values(Case{at::kFloat, at::kFloat}, Case{at::kBFloat16, at::kBFloat16},
                                         Case{at::kHalf, at::kHalf}, Case{at::kBFloat16, at::kFloat},
                                         Case{at::kFloat, at::kBFloat16}, Case{at::kDouble, at::kDouble}));

TEST(OrderedSumInPlace, MayOverwriteAPart) {
  for (const int64_t numel : {100, 700'001}) {
    const std::vector<at::Tensor> parts{at::randn({numel}), at::randn({numel}), at::randn({numel})};
    const at::Tensor expected = expected_sum(parts, 0.5, at::kFloat);
    at::Tensor out = parts[1];
    ordered_sum(parts, 0.5, out);
    EXPECT_TRUE(at::equal(out, expected));
  }
}

}  // namespace
}  // namespace tessera::comm::ordered_sum_test

#include "tessera/nn/layers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace tessera::nn::layers_test {
namespace {

at::Tensor wave(std::vector<int64_t> shape, double step) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return at::sin(at::arange(numel, at::kFloat) * step).view(shape);
}

// The products of 16-bit numbers, rounded once, whichever way this CPU computes them: within one unit in the last place
// of the same product in fp64, and so are the gradients.
TEST(Linear, In16BitsIsTheRoundedProduct) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool with_bias : {true, false}) {
      const auto leaf = [&](const at::Tensor& value) { return value.to(dtype).requires_grad_(true); };
      const at::Tensor x = leaf(wave({3, 5, 24}, 0.37)), w = leaf(wave({40, 24}, 0.11));
      const at::Tensor b = with_bias ? leaf(wave({40}, 0.7)) : at::Tensor();
      const at::Tensor y = linear(x, w, b);
      const at::Tensor g = wave({3, 5, 40}, 0.23).to(dtype);
      y.backward(g);

      const auto wide = [](const at::Tensor& value) { return value.detach().to(at::kDouble).requires_grad_(true); };
      const at::Tensor x64 = wide(x), w64 = wide(w), b64 = with_bias ? wide(b) : at::Tensor();
      const at::Tensor y64 = with_bias ? at::linear(x64, w64, b64) : at::linear(x64, w64);
      y64.backward(g.to(at::kDouble));

      const double unit = dtype == at::kHalf ? 1.0 / 1024 : 1.0 / 128;
      const auto expect_close = [&](const at::Tensor& got, const at::Tensor& want) {
        EXPECT_EQ(got.scalar_type(), dtype);
        EXPECT_TRUE(at::allclose(got.detach().to(at::kDouble), want, unit, unit * 0.1))
            << (got.detach().to(at::kDouble) - want).abs().max().item<double>();
      };
      expect_close(y, y64.detach());
      expect_close(x.grad(), x64.grad());
      expect_close(w.grad(), w64.grad());
      if (with_bias) expect_close(b.grad(), b64.grad());
    }
  }
}

TEST(Linear, GivesNoGradientToWhatNeedsNone) {
  const at::Tensor x = wave({4, 8}, 0.3).to(at::kBFloat16);
  const at::Tensor w = wave({6, 8}, 0.2).to(at::kBFloat16).requires_grad_(true);
  linear(x, w, at::Tensor()).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(w.grad().defined());
}

// transformers' Gemma3RMSNorm in bf16: (x * rsqrt(mean(x²) + eps) * (1 + weight)) in fp32, rounded once at the end.
TEST(RmsNorm, AroundOneIsRoundedAtTheEnd) {
  constexpr double kEps = 1e-6;
  RmsNorm norm(64, kEps, /*around_one=*/true);
  const at::Tensor weight = (0.3 * wave({64}, 0.7)).to(at::kBFloat16);
  materialize(
      norm, [&](const std::string&, at::Tensor value) { value.copy_(weight); }, at::kBFloat16);
  const at::Tensor x = wave({5, 64}, 0.37).to(at::kBFloat16).requires_grad_(true);
  const at::Tensor y = norm.forward(x);
  const at::Tensor g = wave({5, 64}, 0.23).to(at::kBFloat16);
  y.backward(g);

  const at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_(true);
  const at::Tensor w64 = weight.to(at::kDouble).requires_grad_(true);
  const at::Tensor normal = x64 * (x64.square().mean(-1, true) + kEps).rsqrt();
  const at::Tensor y64 = normal * (1 + w64);
  y64.backward(g.to(at::kDouble));
  const auto differing = [](const at::Tensor& got, const at::Tensor& want) {
    return (got != want.detach().to(at::kBFloat16)).to(at::kDouble).mean().item<double>();
  };
  EXPECT_LT(differing(y, y64), 0.01);  // but for what lies between two numbers of bf16
  EXPECT_GT(differing(normal.to(at::kBFloat16) * (1 + weight), y64), 0.1);  // rounded on the way
  EXPECT_LT(differing(x.grad(), x64.grad()), 0.02);
  EXPECT_LT(differing(norm.weight.grad(), w64.grad()), 0.05);
}

}  // namespace
}  // namespace tessera::nn::layers_test

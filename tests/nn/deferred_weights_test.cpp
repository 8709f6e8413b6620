#include "tessera/nn/deferred_weights.h"

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/layers.h"

namespace tessera::nn::deferred_weights_test {
namespace {

struct Net {
  std::vector<std::shared_ptr<Linear>> layers{std::make_shared<Linear>(3, 5), std::make_shared<Linear>(5, 2, false)};
  at::Tensor input = at::randn({4, 6, 3}).requires_grad_(true);

  Net() {
    for (const auto& layer : layers) {
      for (at::Tensor& parameter : layer->parameters()) parameter.set_data(at::randn(parameter.sizes()));
    }
  }

  at::Tensor loss(bool recomputes) const {
    const auto first = [this](const at::Tensor& x) { return at::tanh(layers[0]->forward(x)); };
    return layers[1]->forward(recomputes ? checkpoint(first, input) : first(input)).square().sum();
  }

  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> taken{input.grad()};
    input.mutable_grad() = at::Tensor();
    for (const auto& layer : layers) {
      for (at::Tensor& parameter : layer->parameters()) {
        taken.push_back(parameter.grad());
        parameter.mutable_grad() = at::Tensor();
      }
    }
    return taken;
  }
};

void expect_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].defined()) << i;
    EXPECT_TRUE(at::allclose(got[i], wanted[i], 1e-5, 1e-6)) << i;
  }
}

class Deferred : public testing::TestWithParam<bool> {};  // whether forwards are computed again

TEST_P(Deferred, WeightsComeLaterAndAreThoseOfAutograd) {
  at::manual_seed(1);
  Net net;
  net.loss(GetParam()).backward();
  const std::vector<at::Tensor> wanted = net.take_gradients();

  DeferredWeights weights;
  {
    const DeferredWeights::Scope scope(weights);
    net.loss(GetParam()).backward();
  }
  EXPECT_TRUE(net.input.grad().defined());
  EXPECT_TRUE(net.layers[0]->bias.grad().defined());
  EXPECT_FALSE(net.layers[0]->weight.grad().defined());
  EXPECT_FALSE(net.layers[1]->weight.grad().defined());
  weights.run();
  expect_close(net.take_gradients(), wanted);
  weights.run();  // nothing is left
  EXPECT_FALSE(net.layers[0]->weight.grad().defined());
}

INSTANTIATE_TEST_SUITE_P(Passes, Deferred, testing::Bool());

TEST(DeferredOf, AFrozenWeightIsNone) {
  Net net;
  net.layers[0]->weight.requires_grad_(false);
  DeferredWeights weights;
  {
    const DeferredWeights::Scope scope(weights);
    net.loss(false).backward();
  }
  weights.run();
  EXPECT_FALSE(net.layers[0]->weight.grad().defined());
  EXPECT_TRUE(net.layers[1]->weight.grad().defined());
}

// As the matrices of an adapter in the first layer above frozen embeddings.
TEST(DeferredOf, AnInputWithoutAGradientKeepsNoWeightFromItsOwn) {
  at::manual_seed(2);
  const at::Tensor input = at::randn({4, 3});
  const auto layer = std::make_shared<Linear>(3, 2, /*with_bias=*/false);
  layer->weight.set_data(at::randn({2, 3}));
  layer->forward(input).square().sum().backward();
  const at::Tensor wanted = std::exchange(layer->weight.mutable_grad(), at::Tensor());
  DeferredWeights weights;
  {
    const DeferredWeights::Scope scope(weights);
    layer->forward(input).square().sum().backward();
  }
  EXPECT_FALSE(layer->weight.grad().defined());
  weights.run();
  expect_close({layer->weight.grad()}, {wanted});
}

}  // namespace
}  // namespace tessera::nn::deferred_weights_test

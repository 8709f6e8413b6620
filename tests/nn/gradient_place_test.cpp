// Products that write a weight's gradient where it is wanted: kernels/gradient_place.h, and the layers that use it.
#include "tessera/kernels/gradient_place.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/deferred_weights.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::nn::gradient_place_test {
namespace {

constexpr int64_t kIn = 3, kOut = 5;

// Keeps one gradient, in a dtype of its own.
struct Keeper {
  at::Tensor values;
  bool has = false;
  int written = 0, arrived = 0;  // by a product, and from autograd

  explicit Keeper(const at::Tensor& parameter, at::ScalarType dtype = at::kFloat)
      : values(at::full({parameter.numel()}, NAN, at::TensorOptions(dtype))) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(*this));
  }

 private:
  struct Hook : kernels::GradientTaker {
    explicit Hook(Keeper& into) : keeper(into) {}
    Place place() override { return {.values = keeper.values, .adds = keeper.has}; }
    void taken() override {
      keeper.has = true;
      ++keeper.written;
    }
    void operator()(const at::Tensor& parameter) override {
      if (!parameter.grad().defined()) return;
      const at::Tensor grad = parameter.grad().reshape({-1});
      keeper.values = keeper.has ? keeper.values + grad : grad.to(keeper.values.scalar_type());
      keeper.has = true;
      ++keeper.arrived;
      parameter.mutable_grad() = at::Tensor();
    }
    Keeper& keeper;
  };
};

std::shared_ptr<Linear> layer_of(WeightForm form) {
  auto layer = std::make_shared<Linear>(kIn, kOut, /*with_bias=*/true, LinearCut{}, form);
  for (at::Tensor& parameter : layer->parameters()) parameter.set_data(at::randn(parameter.sizes()));
  layer->set_called_once();
  return layer;
}

at::Tensor loss_of(const Linear& layer, const at::Tensor& input) { return layer.forward(input).pow(3).sum(); }

class Forms : public testing::TestWithParam<WeightForm> {};

// Twice, so that the second is added to the first, and where forwards are computed again.
TEST_P(Forms, AProductWritesWhatAutogradWouldHaveGivenAndAddsTheNext) {
  at::manual_seed(1);
  const auto layer = layer_of(GetParam());
  const at::Tensor input = at::randn({2, 4, kIn}).requires_grad_(true);
  loss_of(*layer, input).backward();
  const at::Tensor weight = layer->weight.grad(), bias = layer->bias.grad(), of_input = input.grad();
  layer->weight.mutable_grad() = layer->bias.mutable_grad() = input.mutable_grad() = at::Tensor();

  Keeper keeper(layer->weight);
  loss_of(*layer, input).backward();
  EXPECT_EQ(keeper.written, 1);
  EXPECT_FALSE(layer->weight.grad().defined());
  EXPECT_TRUE(at::allclose(keeper.values, weight.reshape({-1}), 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(layer->bias.grad(), bias, 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(input.grad(), of_input, 1e-5, 1e-5));
  const auto run = [&layer](const at::Tensor& x) { return layer->forward(x); };
  checkpoint(run, input).pow(3).sum().backward();
  EXPECT_EQ(keeper.written, 2);
  EXPECT_EQ(keeper.arrived, 0);
  EXPECT_TRUE(at::allclose(keeper.values, 2 * weight.reshape({-1}), 1e-5, 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Weights, Forms, testing::Values(WeightForm::kOutIn, WeightForm::kInOut));

TEST(GradientPlace, OfAnInputWithoutAGradientOrWithoutARow) {
  at::manual_seed(2);
  const auto layer = layer_of(WeightForm::kOutIn);
  const at::Tensor input = at::randn({4, kIn});
  loss_of(*layer, input).backward();
  const at::Tensor weight = layer->weight.grad();
  layer->weight.mutable_grad() = at::Tensor();
  Keeper keeper(layer->weight);
  loss_of(*layer, input.narrow(0, 0, 0)).backward();
  EXPECT_TRUE(keeper.values.eq(0).all().item<bool>());
  loss_of(*layer, input).backward();
  EXPECT_EQ(keeper.written, 2);
  EXPECT_TRUE(at::allclose(keeper.values, weight.reshape({-1}), 1e-5, 1e-5));
}

// Autograd brings it where it cannot be written: kept in another dtype, of a layer that may be called twice, or where
// gradients of gradients are recorded.
TEST(GradientPlace, ElseAutogradBringsIt) {
  at::manual_seed(3);
  const at::Tensor input = at::randn({4, kIn}).requires_grad_(true);
  const auto layer = layer_of(WeightForm::kOutIn);
  loss_of(*layer, input).backward();
  const at::Tensor weight = layer->weight.grad();
  layer->weight.mutable_grad() = at::Tensor();
  {
    Keeper narrow(layer->weight, at::kBFloat16);
    loss_of(*layer, input).backward();
    EXPECT_EQ(narrow.arrived, 1);
    EXPECT_EQ(narrow.written, 0);
  }
  Keeper keeper(layer->weight);
  loss_of(*layer, input).backward({}, /*retain_graph=*/{}, /*create_graph=*/true);
  EXPECT_EQ(keeper.arrived, 1);
  for (const at::Tensor& parameter : layer->parameters()) parameter.mutable_grad().reset();  // else a cycle
  input.mutable_grad().reset();
  const auto twice = std::make_shared<Linear>(kIn, kIn);
  for (at::Tensor& parameter : twice->parameters()) parameter.set_data(at::randn(parameter.sizes()));
  Keeper of_twice(twice->weight);
  twice->forward(twice->forward(input)).sum().backward();
  EXPECT_EQ(of_twice.arrived, 1);
  EXPECT_EQ(of_twice.written, 0);
}

// Until it is taken away again.
TEST(GradientPlace, AHookOfSomebodyElseSeesTheGradient) {
  at::manual_seed(5);
  const at::Tensor input = at::randn({4, kIn}).requires_grad_(true);
  const auto layer = layer_of(WeightForm::kOutIn);
  Keeper keeper(layer->weight);
  at::Tensor seen;
  const unsigned hook = layer->weight.register_hook([&seen](const at::Tensor& gradient) { seen = gradient; });
  loss_of(*layer, input).backward();
  EXPECT_EQ(keeper.arrived, 1);
  EXPECT_TRUE(seen.defined() && seen.reshape({-1}).equal(keeper.values));
  layer->weight.remove_hook(hook);
  loss_of(*layer, input).backward();
  EXPECT_EQ(keeper.written, 1);
}

TEST(GradientPlace, WhatWasPutOffIsWrittenToo) {
  at::manual_seed(4);
  const at::Tensor input = at::randn({4, kIn}).requires_grad_(true);
  const auto layer = layer_of(WeightForm::kOutIn);
  loss_of(*layer, input).backward();
  const at::Tensor weight = layer->weight.grad();
  layer->weight.mutable_grad() = at::Tensor();
  Keeper keeper(layer->weight);
  DeferredWeights weights;
  {
    const DeferredWeights::Scope scope(weights);
    loss_of(*layer, input).backward();
  }
  EXPECT_EQ(keeper.written, 0);
  weights.run();
  EXPECT_EQ(keeper.written, 1);
  EXPECT_TRUE(at::allclose(keeper.values, weight.reshape({-1}), 1e-5, 1e-5));
}

}  // namespace
}  // namespace tessera::nn::gradient_place_test

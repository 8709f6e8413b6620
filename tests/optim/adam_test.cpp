// Against torch.optim.AdamW and Adam (L2): LibTorch's own C++ classes are the reference.
#include "tessera/optim/adam.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "tessera/base/error.h"
#include "tessera/optim/optimizers.h"

namespace tessera::optim::adam_test {
namespace {

constexpr int kSteps = 10;
const ParamGroup kGroup{.lr = 3e-2, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-7, .weight_decay = 0.1};

at::Tensor initial(int64_t numel) { return at::sin(at::arange(numel, at::kFloat)); }
at::Tensor gradient(int64_t numel, int step) { return at::cos(at::arange(numel, at::kFloat) * 0.7 + step) * 0.3; }

// Runs our optimizer over the tensor cut into `cuts` shards.
at::Tensor ours(const Optimizer& optimizer, int64_t numel, int64_t cuts, double divisor) {
  at::Tensor weight = initial(numel);
  std::vector<at::Tensor> state;
  for (size_t k = 0; k < optimizer.state_names().size(); ++k) state.push_back(at::zeros_like(weight));
  for (int step = 1; step <= kSteps; ++step) {
    at::Tensor grad = gradient(numel, step) * divisor;
    std::vector<ParamShard> shards;
    for (int64_t cut = 0; cut < cuts; ++cut) {
      const int64_t length = numel / cuts;
      ParamShard shard{.weight = weight.narrow(0, cut * length, length), .grad = grad.narrow(0, cut * length, length)};
      for (const at::Tensor& each : state) shard.state.push_back(each.narrow(0, cut * length, length));
      shard.step = step;
      shards.push_back(std::move(shard));
    }
    const std::vector<ParamGroup> groups{kGroup};
    optimizer.update(shards, {.groups = groups, .grad_divisor = divisor});
  }
  return weight;
}

template <class TorchOptimizer, class Options>
at::Tensor torchs(int64_t numel, const Options& options) {
  at::Tensor weight = initial(numel).requires_grad_(true);
  TorchOptimizer optimizer(std::vector<at::Tensor>{weight}, options);
  for (int step = 1; step <= kSteps; ++step) {
    weight.mutable_grad() = gradient(numel, step);
    optimizer.step();
  }
  return weight.detach();
}

at::Tensor torch_adamw(int64_t numel) {
  return torchs<torch::optim::AdamW>(numel, torch::optim::AdamWOptions(kGroup.lr)
                                                .betas({kGroup.beta1, kGroup.beta2})
                                                .eps(kGroup.eps)
                                                .weight_decay(kGroup.weight_decay));
}

at::Tensor torch_adam(int64_t numel) {
  return torchs<torch::optim::Adam>(numel, torch::optim::AdamOptions(kGroup.lr)
                                               .betas({kGroup.beta1, kGroup.beta2})
                                               .eps(kGroup.eps)
                                               .weight_decay(kGroup.weight_decay));
}

void expect_close(const at::Tensor& got, const at::Tensor& want) {
  EXPECT_LE((got - want).abs().max().item<float>(), 1e-6 * want.abs().max().item<float>());
}

TEST(Adam, WithDecoupledDecayIsTorchsAdamW) {
  expect_close(ours(Adam({.decoupled_decay = true}), 4096, 1, 1), torch_adamw(4096));
}

TEST(Adam, WithL2DecayIsTorchsAdam) {
  expect_close(ours(Adam({.decoupled_decay = false}), 4096, 1, 1), torch_adam(4096));
}

// The gradient falls after the first steps, so that the largest second moment is not the last.
TEST(Adam, WithTheLargestSecondMomentIsTorchsAmsgrad) {
  const auto options = [](auto made) {
    return made.betas({kGroup.beta1, kGroup.beta2}).eps(kGroup.eps).weight_decay(kGroup.weight_decay).amsgrad(true);
  };
  const at::Tensor decoupled = torchs<torch::optim::AdamW>(4096, options(torch::optim::AdamWOptions(kGroup.lr)));
  const at::Tensor plain = torchs<torch::optim::Adam>(4096, options(torch::optim::AdamOptions(kGroup.lr)));
  expect_close(ours(Adam({.amsgrad = true}), 4096, 2, 1), decoupled);
  expect_close(ours(Adam({.decoupled_decay = false, .amsgrad = true}), 4096, 2, 1), plain);
  EXPECT_FALSE(at::allclose(decoupled, torch_adamw(4096)));
}

TEST(Adam, DividesGradientsOnTheWay) {
  expect_close(ours(Adam({.decoupled_decay = true}), 4096, 1, 1024), torch_adamw(4096));
}

TEST(Adam, GivesTheSameBitsHoweverTheTensorIsCut) {
  for (const int64_t numel : {64 * 3, 64 * 720}) {
    const at::Tensor whole = ours(Adam({}), numel, 1, 1);
    for (const int64_t cuts : {2, 3, 6}) EXPECT_TRUE(at::equal(ours(Adam({}), numel, cuts, 1), whole));
  }
}

// Without bias correction: m = (1 - b1) g and v = (1 - b2) g^2 after step 1, so w moves by lr m / (sqrt(v) + eps).
TEST(Adam, WithoutBiasCorrectionFollowsTheFormula) {
  at::Tensor weight = at::ones({32});
  at::Tensor grad = at::full({32}, 0.5f);
  std::vector<ParamShard> shards{
      {.weight = weight, .grad = grad, .state = {at::zeros({32}), at::zeros({32})}, .step = 1}};
  const std::vector<ParamGroup> groups{kGroup};
  Adam({.decoupled_decay = true, .bias_correction = false}).update(shards, {.groups = groups});
  const double m = 0.1 * 0.5, v = 0.02 * 0.25;
  EXPECT_NEAR(weight[0].item<float>(), 1 - kGroup.lr * kGroup.weight_decay - kGroup.lr * m / (std::sqrt(v) + 1e-7),
              1e-6);
}

TEST(Optimizers, AreFoundByDeepSpeedsNames) {
  EXPECT_NO_THROW(optimizers().find("adamw", ""));
  EXPECT_THROW(optimizers().find("Adamm", ""), Error);
}

}  // namespace
}  // namespace tessera::optim::adam_test

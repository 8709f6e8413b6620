// Against the formula of adam.h in fp64, and against itself where the same bits are promised.
#include "tessera/optim/adam_kernel.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tessera/optim/adam.h"

namespace tessera::optim::adam_kernel_test {
namespace {

constexpr int kSteps = 20;
constexpr double kDivisor = 512;  // a loss scale
const ParamGroup kGroup{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-3, .weight_decay = 0.1};

struct Dtypes {
  at::ScalarType grad, weight, state, compute;  // compute: Undefined where there is none
};

struct Training {
  at::Tensor weight, exp_avg, exp_avg_sq, compute;
};

at::Tensor initial(int64_t numel) { return at::sin(at::arange(numel, at::kDouble) * 0.9).to(at::kFloat); }

// What the step's gradient is in its dtype, not yet divided.
at::Tensor gradient(int64_t numel, int step, at::ScalarType dtype) {
  return (at::cos(at::arange(numel, at::kDouble) * 0.7 + step) * 0.3 * kDivisor).to(dtype);
}

Training train(int64_t numel, const Dtypes& dtypes, const AdamOptions& options, int64_t cuts = 1) {
  Training t{.weight = initial(numel).to(dtypes.weight),
             .exp_avg = at::zeros({numel}, dtypes.state),
             .exp_avg_sq = at::zeros({numel}, dtypes.state)};
  if (dtypes.compute != at::ScalarType::Undefined) t.compute = at::zeros({numel}, dtypes.compute);
  const Adam adam(options);
  const std::vector<ParamGroup> groups{kGroup};
  for (int step = 1; step <= kSteps; ++step) {
    at::Tensor grad = gradient(numel, step, dtypes.grad);
    std::vector<ParamShard> shards;
    for (int64_t cut = 0; cut < cuts; ++cut) {
      const auto part = [&](const at::Tensor& whole) {
        return whole.defined() ? whole.narrow(0, cut * (numel / cuts), numel / cuts) : whole;
      };
      shards.push_back({.weight = part(t.weight),
                        .grad = part(grad),
                        .state = {part(t.exp_avg), part(t.exp_avg_sq)},
                        .compute = part(t.compute),
                        .step = step});
    }
    adam.update(shards, {.groups = groups, .grad_divisor = kDivisor});
  }
  return t;
}

// The same gradients, everything else in fp64.
at::Tensor reference(int64_t numel, at::ScalarType grad_dtype, const AdamOptions& options) {
  at::Tensor w = initial(numel).to(at::kDouble), m = at::zeros_like(w), v = at::zeros_like(w);
  for (int step = 1; step <= kSteps; ++step) {
    at::Tensor g = gradient(numel, step, grad_dtype).to(at::kDouble) / kDivisor;
    if (!options.decoupled_decay) g = g + kGroup.weight_decay * w;
    m = kGroup.beta1 * m + (1 - kGroup.beta1) * g;
    v = kGroup.beta2 * v + (1 - kGroup.beta2) * g * g;
    const double c1 = options.bias_correction ? 1 - std::pow(kGroup.beta1, step) : 1;
    const double c2 = options.bias_correction ? 1 - std::pow(kGroup.beta2, step) : 1;
    if (options.decoupled_decay) w = w * (1 - kGroup.lr * kGroup.weight_decay);
    w = w - kGroup.lr * (m / c1) / ((v / c2).sqrt() + kGroup.eps);
  }
  return w;
}

double largest_error(const at::Tensor& got, const at::Tensor& want) {
  return (got.to(at::kDouble) - want).abs().max().item<double>() / want.abs().max().item<double>();
}

const AdamOptions kVariants[] = {
    {.decoupled_decay = true}, {.decoupled_decay = false}, {.decoupled_decay = true, .bias_correction = false}};

TEST(AdamKernel, WithMasterWeightsIsTheFormula) {
  for (const at::ScalarType grad : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType compute : {at::kBFloat16, at::kHalf}) {
      for (const AdamOptions& options : kVariants) {
        const Training t = train(5000, {grad, at::kFloat, at::kFloat, compute}, options);
        EXPECT_LT(largest_error(t.weight, reference(5000, grad, options)), 1e-6) << toString(grad);
        EXPECT_TRUE(at::equal(t.compute, t.weight.to(compute))) << toString(grad) << ", " << toString(compute);
      }
    }
  }
}

// Rounding of 16-bit weights and moments at each of 20 steps: a few units in the last place.
TEST(AdamKernel, In16BitsThroughoutIsNearTheFormula) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const double unit = dtype == at::kBFloat16 ? 0x1p-7 : 0x1p-10;
    const at::Tensor want = reference(5000, dtype, {});
    for (const at::ScalarType state : {at::kFloat, dtype}) {
      const Training t = train(5000, {dtype, dtype, state, at::ScalarType::Undefined}, {});
      EXPECT_LT(largest_error(t.weight, want), 4 * unit) << toString(dtype);
      EXPECT_EQ(t.weight.scalar_type(), dtype);
    }
  }
}

TEST(AdamKernel, HasTheSameBitsHoweverTheTensorIsCut) {
  const int64_t numel = 16 * 1024 + 48;
  const Dtypes dtypes{at::kBFloat16, at::kFloat, at::kFloat, at::kBFloat16};
  const Training whole = train(numel, dtypes, {});
  for (const int64_t cuts : {3, 16}) {
    const Training cut = train(numel / cuts / 16 * 16 * cuts, dtypes, {}, cuts);
    EXPECT_TRUE(at::equal(cut.weight, whole.weight.narrow(0, 0, cut.weight.numel()))) << cuts;
  }
}

TEST(AdamKernel, HasTheSameBitsOnAnyNumberOfThreads) {
  const Dtypes dtypes{at::kHalf, at::kFloat, at::kFloat, at::kHalf};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Training one = train(100'000, dtypes, {});
  at::set_num_threads(2);
  const Training two = train(100'000, dtypes, {});
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one.weight, two.weight));
  EXPECT_TRUE(at::equal(one.compute, two.compute));
}

// One element at a time, in the order of operations that the header promises: what every instruction set must give.
TEST(AdamKernel, HasTheBitsOfPlainArithmetic) {
  const int64_t numel = 3000;
  at::Tensor grad = gradient(numel, 1, at::kBFloat16), weight = initial(numel), m = at::full({numel}, 0.25f),
             v = at::full({numel}, 0.5f), compute = at::empty({numel}, at::kBFloat16);
  const at::Tensor before = weight.clone();
  const double c1 = 1 - 0.9, c2 = 1 - 0.98;
  adam_kernel({.group = kGroup, .correction1 = c1, .correction2 = c2, .grad_divisor = kDivisor}, grad, weight, m, v,
              compute);
  for (int64_t i = 0; i < numel; ++i) {
    volatile float g = grad[i].item<float>() * static_cast<float>(1 / kDivisor);  // volatile: nothing is fused
    volatile float step = (1 - 0.9f) * (g - 0.25f);
    volatile float new_m = 0.25f + step;
    volatile float squared = (1 - 0.98f) * g;
    squared = squared * g;
    volatile float kept_v = 0.98f * 0.5f;
    volatile float new_v = kept_v + squared;
    volatile float root = std::sqrt(new_v) * static_cast<float>(1 / std::sqrt(c2));
    volatile float denominator = root + 1e-3f;
    volatile float kept = static_cast<float>(1 - 1e-2 * 0.1) * before[i].item<float>();
    volatile float moved = static_cast<float>(1e-2 / c1) * new_m;
    moved = moved / denominator;
    volatile float want = kept - moved;
    ASSERT_EQ(weight[i].item<float>(), want) << i;
    ASSERT_EQ(m[i].item<float>(), new_m) << i;
    ASSERT_EQ(v[i].item<float>(), new_v) << i;
  }
}

TEST(AdamKernel, PassesOnWhatIsNotFinite) {
  for (const float bad : {INFINITY, NAN}) {
    at::Tensor grad = at::full({32}, bad, at::kHalf), weight = at::ones({32}), m = at::zeros({32}), v = at::zeros({32}),
               compute = at::ones({32}, at::kHalf);
    adam_kernel({.group = kGroup}, grad, weight, m, v, compute);
    EXPECT_TRUE(weight.isnan().all().item<bool>());
    EXPECT_TRUE(compute.isnan().all().item<bool>());
  }
}

}  // namespace
}  // namespace tessera::optim::adam_kernel_test

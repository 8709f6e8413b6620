#include "tessera/optim/onebit_lamb.h"

#include <algorithm>
#include <cmath>

#include "tessera/optim/clip.h"
#include "tessera/optim/signed_mean.h"

namespace tessera::optim {
namespace {

enum State : size_t { kMomentum, kVariance, kFreshVariance };
enum Number : size_t { kCoeff, kFactor };

// direction = m / (sqrt(v) + eps)
void set_to_adams(at::Tensor& direction, const ParamShard& shard, double eps) {
  direction.copy_(shard.state[kVariance]).sqrt_().add_(eps).reciprocal_().mul_(shard.state[kMomentum]);
}

}  // namespace

void OneBitLamb::update(std::span<ParamShard> shards, const UpdateInput& input) const {
  if (input.grad_divisor != 1) {
    for (ParamShard& shard : shards) shard.grad.div_(input.grad_divisor);
  }
  if (takes_own_gradients(input.step)) {
    update_compressed(shards, input);
  } else {
    update_warm(shards, input);
  }
}

void OneBitLamb::update_warm(std::span<ParamShard> shards, const UpdateInput& input) const {
  std::vector<double> squares;  // of the weight and of the direction, for each shard
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    at::Tensor& direction = shard.grad;
    shard.state[kMomentum].mul_(group.beta1).add_(shard.grad, 1 - group.beta1);
    shard.state[kVariance].mul_(group.beta2).addcmul_(shard.grad, shard.grad, 1 - group.beta2);
    if (input.step == options_.freeze_step) shard.state[kFreshVariance].copy_(shard.state[kVariance]);
    set_to_adams(direction, shard, group.eps);
    if (group.weight_decay != 0) direction.add_(shard.weight, group.weight_decay);
    squares.push_back(sum_of_squares(shard.weight));
    squares.push_back(sum_of_squares(direction));
  }
  const std::vector<double> sums = input.peers->sum_by_param(shards, squares, /*width=*/2);
  for (ParamShard& shard : shards) {
    const double weight_norm = std::sqrt(sums[shard.param * 2]);
    const double direction_norm = std::sqrt(sums[shard.param * 2 + 1]);
    double ratio = 1;
    if (weight_norm != 0 && direction_norm != 0) {
      ratio = std::clamp(weight_norm / direction_norm, options_.min_coeff, options_.max_coeff);
    }
    if (ratio != 1 && shard.first == 0) {
      shard.numbers[kCoeff] = options_.coeff_beta * shard.numbers[kCoeff] + (1 - options_.coeff_beta) * ratio;
    }
    shard.weight.sub_(shard.grad, input.groups[shard.group].lr * ratio);
  }
}

void OneBitLamb::update_compressed(std::span<ParamShard> shards, const UpdateInput& input) const {
  for (ParamShard& shard : shards) {
    const double beta1 = input.groups[shard.group].beta1;
    silence_unseen(shard, kVariance);
    at::Tensor& momentum = shard.state[kMomentum];
    at::Tensor& decayed = shard.grad;  // b1 m, until the new momentum is known
    const at::Tensor fresh = shard.grad.mul(1 - beta1);
    momentum.mul_(beta1);
    decayed.copy_(momentum);
    momentum.add_(fresh);
  }
  mean_state_by_signs(shards, input, kMomentum, kVariance);

  std::vector<double> squares;                          // of p and of u, for each shard
  std::vector<double> factors(input.params.size(), 0);  // s
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    at::Tensor implied = shard.grad.neg_().add_(shard.state[kMomentum]).div_(1 - group.beta1);
    shard.state[kFreshVariance].mul_(group.beta2).addcmul_(implied, implied, 1 - group.beta2);
    const int64_t numel = std::min(shard.weight.numel(), input.params[shard.param].numel - shard.first);
    const auto root = [&](State state) { return shard.state[state].narrow(0, 0, numel).sqrt().add_(group.eps); };
    const double largest = root(kVariance).div_(root(kFreshVariance)).max().item<double>();
    factors[shard.param] = std::max(factors[shard.param], largest);
    at::Tensor& direction = shard.grad;
    set_to_adams(direction, shard, group.eps);
    squares.push_back(sum_of_squares(direction));
    if (group.weight_decay != 0) direction.add_(shard.weight, group.weight_decay);
    squares.push_back(sum_of_squares(direction));
  }
  const std::vector<double> sums = input.peers->sum_by_param(shards, squares, /*width=*/2);
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    if (shard.first == 0) {
      double factor = factors[shard.param];
      if (group.weight_decay > 0 && sums[shard.param * 2 + 1] > 0) {
        const double ratio = std::min(1.0, std::sqrt(sums[shard.param * 2] / sums[shard.param * 2 + 1]));
        factor = factor * ratio + 1 - ratio;
      }
      factor = std::clamp(factor, options_.factor_min, options_.factor_max);
      const double last = shard.numbers[kFactor] == 0 ? 1 : shard.numbers[kFactor];
      const double reach = last * options_.factor_threshold;
      shard.numbers[kFactor] = std::clamp(factor, last - reach, last + reach);
    }
    shard.weight.sub_(shard.grad, group.lr * shard.numbers[kCoeff] * shard.numbers[kFactor]);
  }
}

}  // namespace tessera::optim

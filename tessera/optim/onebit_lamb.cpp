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
void set_to_adams(at::Tensor& direction, const ParamSlice& slice, double eps) {
  direction.copy_(slice.state[kVariance]).sqrt_().add_(eps).reciprocal_().mul_(slice.state[kMomentum]);
}

}  // namespace

void OneBitLamb::update(std::span<ParamSlice> slices, const UpdateInput& input) const {
  if (input.grad_divisor != 1) {
    for (ParamSlice& slice : slices) slice.grad.div_(input.grad_divisor);
  }
  if (takes_own_gradients(input.step)) {
    update_compressed(slices, input);
  } else {
    update_warm(slices, input);
  }
}

void OneBitLamb::update_warm(std::span<ParamSlice> slices, const UpdateInput& input) const {
  std::vector<double> squares;  // of the weight and of the direction, for each slice
  for (ParamSlice& slice : slices) {
    const ParamGroup& group = input.groups[slice.group];
    at::Tensor& direction = slice.grad;
    slice.state[kMomentum].mul_(group.beta1).add_(slice.grad, 1 - group.beta1);
    slice.state[kVariance].mul_(group.beta2).addcmul_(slice.grad, slice.grad, 1 - group.beta2);
    if (input.step == options_.freeze_step) slice.state[kFreshVariance].copy_(slice.state[kVariance]);
    set_to_adams(direction, slice, group.eps);
    if (group.weight_decay != 0) direction.add_(slice.weight, group.weight_decay);
    squares.push_back(sum_of_squares(slice.weight));
    squares.push_back(sum_of_squares(direction));
  }
  const std::vector<double> sums = input.peers->sum_by_param(slices, squares, /*width=*/2);
  for (ParamSlice& slice : slices) {
    const double weight_norm = std::sqrt(sums[slice.param * 2]);
    const double direction_norm = std::sqrt(sums[slice.param * 2 + 1]);
    double ratio = 1;
    if (weight_norm != 0 && direction_norm != 0) {
      ratio = std::clamp(weight_norm / direction_norm, options_.min_coeff, options_.max_coeff);
    }
    if (ratio != 1 && slice.first == 0) {
      slice.numbers[kCoeff] = options_.coeff_beta * slice.numbers[kCoeff] + (1 - options_.coeff_beta) * ratio;
    }
    slice.weight.sub_(slice.grad, input.groups[slice.group].lr * ratio);
  }
}

void OneBitLamb::update_compressed(std::span<ParamSlice> slices, const UpdateInput& input) const {
  for (ParamSlice& slice : slices) {
    const double beta1 = input.groups[slice.group].beta1;
    silence_unseen(slice, kVariance);
    at::Tensor& momentum = slice.state[kMomentum];
    at::Tensor& decayed = slice.grad;  // b1 m, until the new momentum is known
    const at::Tensor fresh = slice.grad.mul(1 - beta1);
    momentum.mul_(beta1);
    decayed.copy_(momentum);
    momentum.add_(fresh);
  }
  mean_state_by_signs(slices, input, kMomentum, kVariance);

  std::vector<double> squares;                          // of p and of u, for each slice
  std::vector<double> factors(input.params.size(), 0);  // s
  for (ParamSlice& slice : slices) {
    const ParamGroup& group = input.groups[slice.group];
    at::Tensor implied = slice.grad.neg_().add_(slice.state[kMomentum]).div_(1 - group.beta1);
    slice.state[kFreshVariance].mul_(group.beta2).addcmul_(implied, implied, 1 - group.beta2);
    const int64_t numel = std::min(slice.weight.numel(), input.params[slice.param].numel - slice.first);
    const auto root = [&](State state) { return slice.state[state].narrow(0, 0, numel).sqrt().add_(group.eps); };
    const double largest = root(kVariance).div_(root(kFreshVariance)).max().item<double>();
    factors[slice.param] = std::max(factors[slice.param], largest);
    at::Tensor& direction = slice.grad;
    set_to_adams(direction, slice, group.eps);
    squares.push_back(sum_of_squares(direction));
    if (group.weight_decay != 0) direction.add_(slice.weight, group.weight_decay);
    squares.push_back(sum_of_squares(direction));
  }
  const std::vector<double> sums = input.peers->sum_by_param(slices, squares, /*width=*/2);
  for (ParamSlice& slice : slices) {
    const ParamGroup& group = input.groups[slice.group];
    if (slice.first == 0) {
      double factor = factors[slice.param];
      if (group.weight_decay > 0 && sums[slice.param * 2 + 1] > 0) {
        const double ratio = std::min(1.0, std::sqrt(sums[slice.param * 2] / sums[slice.param * 2 + 1]));
        factor = factor * ratio + 1 - ratio;
      }
      factor = std::clamp(factor, options_.factor_min, options_.factor_max);
      const double last = slice.numbers[kFactor] == 0 ? 1 : slice.numbers[kFactor];
      const double reach = last * options_.factor_threshold;
      slice.numbers[kFactor] = std::clamp(factor, last - reach, last + reach);
    }
    slice.weight.sub_(slice.grad, group.lr * slice.numbers[kCoeff] * slice.numbers[kFactor]);
  }
}

}  // namespace tessera::optim

#include "tessera/optim/lamb.h"

#include <algorithm>
#include <cmath>

#include "tessera/optim/clip.h"

namespace tessera::optim {

void Lamb::update(std::span<ParamShard> shards, const UpdateInput& input) const {
  std::vector<double> squares;  // of the weight and of the direction, for each shard
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    at::Tensor& grad = shard.grad;
    at::Tensor& exp_avg = shard.state[0];
    at::Tensor& exp_avg_sq = shard.state[1];
    if (input.grad_divisor != 1) grad.div_(input.grad_divisor);
    exp_avg.mul_(group.beta1).add_(grad, 1 - group.beta1);
    exp_avg_sq.mul_(group.beta2).addcmul_(grad, grad, 1 - group.beta2);
    at::Tensor& direction = grad;
    if (options_.eps_inside_sqrt) {
      direction.copy_(exp_avg_sq).add_(group.eps).sqrt_();
    } else {
      direction.copy_(exp_avg_sq).sqrt_().add_(group.eps);
    }
    direction.reciprocal_().mul_(exp_avg);
    if (group.weight_decay != 0) direction.add_(shard.weight, group.weight_decay);
    squares.push_back(sum_of_squares(shard.weight));
    squares.push_back(sum_of_squares(direction));
  }

  const std::vector<double> sums = input.peers->sum_by_param(shards, squares, /*width=*/2);
  for (ParamShard& shard : shards) {
    const ParamGroup& group = input.groups[shard.group];
    const double weight_norm = std::sqrt(sums[shard.param * 2]);
    const double direction_norm = std::sqrt(sums[shard.param * 2 + 1]);
    double ratio = 1;
    if (weight_norm != 0 && direction_norm != 0) {
      ratio = std::clamp(weight_norm / direction_norm, options_.min_coeff, options_.max_coeff);
    }
    double step_size = group.lr;
    if (options_.bias_correction) {
      const auto t = static_cast<double>(shard.step);
      step_size *= std::sqrt(1 - std::pow(group.beta2, t)) / (1 - std::pow(group.beta1, t));
    }
    shard.weight.sub_(shard.grad, step_size * ratio);
  }
}

}  // namespace tessera::optim

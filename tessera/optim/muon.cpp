#include "tessera/optim/muon.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cctype>
#include <cmath>

namespace tessera::optim {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr int kNewtonSchulzSteps = 5;

// Of a matrix [rows, columns].
at::Tensor orthogonalized(const at::Tensor& matrix) {
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = tall ? matrix.t() : matrix;
  x = x.div(x.norm().add(1e-7));
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    const at::Tensor a = at::matmul(x, x.t());
    const at::Tensor b = at::addmm(a, a, a, /*beta=*/kB, /*alpha=*/kC);
    x = at::addmm(x, b, x, /*beta=*/kA);
  }
  return tall ? x.t() : x;
}

}  // namespace

void Muon::update(std::span<ParamShard> shards, const UpdateInput& input) const {
  std::vector<ParamShard> matrices, others;
  for (ParamShard& shard : shards) {
    (input.groups[shard.group].orthogonalized ? matrices : others).push_back(shard);
  }
  for (ParamShard& shard : matrices) {
    const ParamGroup& group = input.groups[shard.group];
    at::Tensor& momentum = shard.state[0];
    if (input.grad_divisor != 1) shard.grad.div_(input.grad_divisor);
    momentum.lerp_(shard.grad, 1 - group.momentum);
    shard.grad.lerp_(momentum, group.momentum);
  }

  const bool any = std::any_of(input.params.begin(), input.params.end(),
                               [&](const WholeParam& param) { return input.groups[param.group].orthogonalized; });
  std::vector<at::Tensor> wholes;
  if (any) wholes = input.peers->whole_grads(matrices);
  std::vector<at::Tensor> directions(wholes.size());
  for (ParamShard& shard : matrices) {
    const ParamGroup& group = input.groups[shard.group];
    at::Tensor& direction = directions[shard.param];
    if (!direction.defined()) {
      const int64_t rows = input.params[shard.param].shape.front();
      const at::Tensor matrix = wholes[shard.param].view({rows, -1});
      const double ratio = static_cast<double>(rows) / static_cast<double>(matrix.size(1));
      direction = orthogonalized(matrix).contiguous().view({-1}).mul_(std::sqrt(std::max(1.0, ratio)));
    }
    const int64_t numel = std::min(shard.weight.numel(), direction.numel() - shard.first);  // without padding
    at::Tensor weight = shard.weight.narrow(0, 0, numel);
    if (group.weight_decay != 0) weight.mul_(1 - group.lr * group.weight_decay);
    weight.sub_(direction.narrow(0, shard.first, numel), group.lr);
  }
  adam_.update(others, input);
}

bool is_muons(const std::string& name, size_t dimensions) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return dimensions >= 2 && lower.find("embed") == std::string::npos && lower.find("lm_head") == std::string::npos;
}

}  // namespace tessera::optim

// A model of three parameters in one unit, for three ranks: its second parameter straddles two shards.
//
//   buffer   [ a: 35 of 64 | b: 100 of 128 | c: 3 of 32 | pad ]   288 elements
//   shards   [ rank 0: 0 to 96 | rank 1: 96 to 192 | rank 2: 192 to 288 ]
//   pieces   a: [0, 35) on rank 0    b: [0, 32) on rank 0, [32, 100) on rank 1    c: [0, 3) on rank 2
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/zero/sharded_model.h"

namespace tessera::test {

inline constexpr int kThreeRanks = 3;
inline const std::vector<std::vector<int64_t>> kShapes = {{5, 7}, {100}, {3}};
inline const std::vector<std::vector<layout::Range>> kPieces = {
    {{0, 35}, {0, 0}, {0, 0}}, {{0, 32}, {32, 100}, {0, 0}}, {{0, 0}, {0, 0}, {0, 3}}};

// Numbers of any kind, none of them a bf16; another parameter and another phase give others.
inline at::Tensor numbers(size_t param, double phase = 0) {
  const at::Tensor n = at::arange(c10::multiply_integers(kShapes[param]), at::kFloat);
  return (at::sin(n * 1.7 + (static_cast<double>(param) + phase)) + 2.001).view(kShapes[param]);
}

// The mean over the ranks of what ThreeParams::run_backward makes, each rank's in the dtype of the model.
inline at::Tensor mean_gradient(size_t param, at::ScalarType dtype) {
  at::Tensor sum = at::zeros(kShapes[param]);
  for (int rank = 0; rank < kThreeRanks; ++rank) {
    sum += (numbers(param, 1).to(dtype) * (rank + 1.0)).to(at::kFloat);
  }
  return sum / kThreeRanks;
}

// With fp32 gradients; in bf16 also fp32 master weights, so that what is rounded can be told from what is not.
inline zero::Policy mixed_policy(int stage, at::ScalarType dtype = at::kBFloat16) {
  zero::Policy policy = zero::policy_of_stage(stage, dtype, kThreeRanks);
  policy.grad_dtype = policy.averaging.dtype = at::kFloat;
  return policy;
}

struct ThreeParams {
  // Begins with numbers(0) to numbers(2), which rank 0 alone knows.
  ThreeParams(const zero::Policy& policy, const zero::OptimizerNeeds& needs, std::shared_ptr<comm::Group> world)
      : rank(world->rank()) {
    std::vector<zero::NamedParam> named;
    for (size_t param = 0; param < kShapes.size(); ++param) {
      const at::Tensor values = rank == 0 ? numbers(param) : at::zeros(kShapes[param]);
      params.push_back(values.requires_grad_(true));
      named.push_back({{.name = std::string(1, static_cast<char>('a' + param))}, params.back()});
    }
    sharded = zero::ShardedModel::create({{"model", named}}, needs, policy, comm::Mesh::data_parallel(world), nullptr);
  }

  // Of the sum of w * numbers(param, 1) * (rank + 1), over the first `used` parameters: the mean gradient over three
  // ranks is twice those numbers.
  void run_backward(size_t used = kShapes.size()) {
    sharded->before_forward(0, {});
    at::Tensor loss;
    for (size_t param = 0; param < used; ++param) {
      const at::Tensor term = (params[param] * numbers(param, 1).to(params[param].scalar_type()) * (rank + 1.0)).sum();
      loss = loss.defined() ? loss + term : term;
    }
    sharded->after_forward(0, {loss});
    sharded->begin_backward();
    loss.backward();
    sharded->finish_backward();
  }

  // The parameter as forward sees it.
  at::Tensor whole(size_t param) {
    sharded->hold_all();
    const at::Tensor values = params[param].detach().clone();
    sharded->drop_all();
    return values;
  }

  int rank;
  std::vector<at::Tensor> params;
  std::shared_ptr<zero::ShardedModel> sharded;
};

}  // namespace tessera::test

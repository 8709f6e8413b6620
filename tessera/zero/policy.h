// What is sharded, and in which dtype the model computes. A stage of ZeRO (Rajbhandari et al. 2020) is nothing but such
// a policy over one layout:
//
//   stage   optimizer state   gradients   parameters        bytes a parameter, mixed precision, N ranks
//     0     whole             whole       whole             2 + 2 + 12
//     1     slice             whole       whole             2 + 2 + 12/N
//     2     slice             slice       whole             2 + 14/N
//     3     slice             slice       slice             16/N
#pragma once

#include <c10/core/ScalarType.h>

namespace tessera::zero {

struct Policy {
  bool shard_optimizer = false;
  bool shard_gradients = false;
  bool shard_parameters = false;
  at::ScalarType compute_dtype = at::kFloat;

  // fp32 weights beside the compute weights; in fp32 the compute weights are the master.
  bool has_master() const { return compute_dtype != at::kFloat; }
};

constexpr Policy policy_of_stage(int stage, at::ScalarType compute_dtype) {
  return {.shard_optimizer = stage >= 1,
          .shard_gradients = stage >= 2,
          .shard_parameters = stage >= 3,
          .compute_dtype = compute_dtype};
}

}  // namespace tessera::zero

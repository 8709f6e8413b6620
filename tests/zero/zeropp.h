// For tests of ZeRO++: four ranks in two inner groups, and a unit that the four share out.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "tessera/kernels/block_quantization.h"
#include "tessera/zero/sharded_model.h"

namespace tessera::test {

inline constexpr int kFourRanks = 4, kInnerRanks = 2;

// One parameter, 4 shards of `shard_numel` elements.
inline at::Tensor weights(int64_t shard_numel, double phase = 0) {
  return at::sin(at::arange(kFourRanks * shard_numel, at::kFloat) * 0.7 + phase) + 0.1;
}

inline zero::Policy stage3(zero::Traffic traffic, at::ScalarType dtype = at::kFloat) {
  zero::Policy policy = zero::policy_of_stage(3, dtype, kFourRanks);
  traffic.inner_ranks = kInnerRanks;
  policy.traffic = traffic;
  return policy;
}

inline zero::DataGroups two_levels(const std::shared_ptr<comm::Group>& world) {
  return zero::DataGroups::of(*comm::Mesh::data_parallel(world), /*shards_anything=*/true, {}, kInnerRanks);
}

// What comes out of quantizing each shard by itself.
inline at::Tensor coarse(const at::Tensor& values, int bits) {
  at::Tensor result = at::empty_like(values);
  const int64_t shard = values.numel() / kFourRanks;
  for (int64_t rank = 0; rank < kFourRanks; ++rank) {
    const at::Tensor quantized = at::empty({kernels::quantized_bytes(shard, bits)}, at::kByte);
    kernels::quantize(values.narrow(0, rank * shard, shard), bits, quantized);
    kernels::dequantize(quantized, bits, result.narrow(0, rank * shard, shard));
  }
  return result;
}

}  // namespace tessera::test

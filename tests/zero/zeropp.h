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

// What comes out of quantizing.
inline at::Tensor came_out(const at::Tensor& values, int bits) {
  const at::Tensor quantized = at::empty({kernels::quantized_bytes(values.numel(), bits)}, at::kByte);
  kernels::quantize(values, bits, quantized);
  at::Tensor result = at::empty_like(values);
  kernels::dequantize(quantized, bits, result);
  return result;
}

// … each shard by itself.
inline at::Tensor coarse(const at::Tensor& values, int bits) {
  std::vector<at::Tensor> shards;
  for (const at::Tensor& shard : values.chunk(kFourRanks)) shards.push_back(came_out(shard, bits));
  return at::cat(shards);
}

}  // namespace tessera::test

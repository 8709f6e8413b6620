// The states of LibTorch's default generators, the CPU's and each device's, which dropout there draws from.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::engine {

at::Tensor random_state(at::Device device = at::kCPU);  // uint8, on the CPU
void set_random_state(const at::Tensor& state, at::Device device = at::kCPU);
void seed_random_state(uint64_t seed, at::Device device = at::kCPU);

}  // namespace tessera::engine

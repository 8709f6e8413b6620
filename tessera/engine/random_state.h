// The state of LibTorch's default CPU generator, which dropout draws from.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::engine {

at::Tensor random_state();  // uint8
void set_random_state(const at::Tensor& state);
void seed_random_state(uint64_t seed);

}  // namespace tessera::engine

// The functions between a feed-forward layer's matrices, by the names that transformers gives them (ACT2FN).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace tessera::nn {

using Activation = at::Tensor (*)(const at::Tensor& input);

// Null where the name is not known.
Activation find_activation(const std::string& name);
std::vector<std::string> known_activations();

// silu(gate) * up, elementwise (Shazeer 2020, "SwiGLU"); keeps only the two for backward.
at::Tensor silu_times(const at::Tensor& gate, const at::Tensor& up);

}  // namespace tessera::nn

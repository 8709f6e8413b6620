// Low-rank adaptation (Hu et al. 2021): beside the frozen matrix W of a linear layer two thin ones are trained,
//
//   y = x W^T + s · dropout(x) A^T B^T      A (rank, in), B (out, rank); s = alpha / rank
//
// rsLoRA (Kalajdzievski 2023) scales by alpha / sqrt(rank) instead. A and B are "lora_A.weight" and "lora_B.weight" of
// the layer, as in the package PEFT.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "tessera/nn/layers.h"

namespace tessera::nn {

// A and B of one layer.
class LoraBranch {
 public:
  // Registers both with the layer. Their values are the caller's to fill: B is zero at first (Hu et al., section 4.1).
  LoraBranch(torch::nn::Module& layer, int64_t in_features, int64_t out_features, const LoraOptions& options);

  at::Tensor forward(const at::Tensor& input, bool training) const;  // what is added: (…, in) -> (…, out)

 private:
  std::shared_ptr<Linear> a_, b_;
  double scale_, dropout_;
};

inline bool is_lora_parameter(std::string_view name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

}  // namespace tessera::nn

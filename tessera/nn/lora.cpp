#include "tessera/nn/lora.h"

#include <ATen/ops/dropout.h>

#include <cmath>

#include "tessera/nn/layers.h"

namespace tessera::nn {

double LoraOptions::scale() const {
  const auto size = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(size) : size);
}

LoraBranch::LoraBranch(torch::nn::Module& layer, int64_t in_features, int64_t out_features, const LoraOptions& options)
    : a_(layer.register_module("lora_A", std::make_shared<Linear>(in_features, options.rank, /*with_bias=*/false))),
      b_(layer.register_module("lora_B", std::make_shared<Linear>(options.rank, out_features, /*with_bias=*/false))),
      scale_(options.scale()),
      dropout_(options.dropout) {}

at::Tensor LoraBranch::forward(const at::Tensor& input, bool training) const {
  const at::Tensor dropped = dropout_ > 0 && training ? at::dropout(input, dropout_, training) : input;
  return b_->forward(a_->forward(dropped)) * scale_;
}

}  // namespace tessera::nn

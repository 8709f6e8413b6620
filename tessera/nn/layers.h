// The layers that common transformers are made of. Their parameters are declared: they have a shape but no storage
// until an engine, or materialize(), gives them some and fills it, so a model larger than memory can be described.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

namespace tessera::nn {

// fp32, requires grad, no bytes.
at::Tensor declared_parameter(std::vector<int64_t> shape);

// input weight^T + bias (undefined: none), in the input's dtype. Where a CPU has no fast products of 16-bit
// numbers (kernels/matrix_products.h) they are computed in fp32 and rounded; what is kept for backward stays 16 bits
// wide.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

// y = x weight^T + bias; weight (out_features, in_features), bias (out_features).
class Linear : public torch::nn::Module {
 public:
  Linear(int64_t in_features, int64_t out_features, bool with_bias = true);
  at::Tensor forward(const at::Tensor& input) const;  // (…, in_features) -> (…, out_features)

  at::Tensor weight;
  at::Tensor bias;  // undefined without
};

// Rows of weight (count, width); the row `padding_index` gets no gradient (none when negative).
class Embedding : public torch::nn::Module {
 public:
  Embedding(int64_t count, int64_t width, int64_t padding_index = -1);
  at::Tensor forward(const at::Tensor& ids) const;  // (…) int64 -> (…, width)

  at::Tensor weight;

 private:
  int64_t padding_index_;
};

// Normalises over the last dimension; Ba et al. 2016.
class LayerNorm : public torch::nn::Module {
 public:
  LayerNorm(int64_t width, double eps);
  at::Tensor forward(const at::Tensor& input) const;

  at::Tensor weight;
  at::Tensor bias;

 private:
  int64_t width_;
  double eps_;
};

// Gives every declared parameter of the tree bytes of its own and has `fill` write them; a parameter with several names
// is filled once, under the first. For use without an engine.
void materialize(torch::nn::Module& model, const std::function<void(const std::string& name, at::Tensor value)>& fill);

}  // namespace tessera::nn

#include "tessera/nn/layers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <c10/core/Allocator.h>

#include <unordered_set>

namespace tessera::nn {

at::Tensor declared_parameter(std::vector<int64_t> shape) {
  at::Tensor parameter = at::empty(shape, at::kFloat);  // its pages are never touched
  c10::StorageImpl* const storage = parameter.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::GetAllocator(c10::DeviceType::CPU)->allocate(0));
  storage->set_nbytes(0);
  return parameter.requires_grad_(true);
}

Linear::Linear(int64_t in_features, int64_t out_features, bool with_bias) {
  weight = register_parameter("weight", declared_parameter({out_features, in_features}));
  if (with_bias) bias = register_parameter("bias", declared_parameter({out_features}));
}

at::Tensor Linear::forward(const at::Tensor& input) const {
  return bias.defined() ? at::linear(input, weight, bias) : at::linear(input, weight);
}

Embedding::Embedding(int64_t count, int64_t width, int64_t padding_index) : padding_index_(padding_index) {
  weight = register_parameter("weight", declared_parameter({count, width}));
}

at::Tensor Embedding::forward(const at::Tensor& ids) const { return at::embedding(weight, ids, padding_index_); }

LayerNorm::LayerNorm(int64_t width, double eps) : width_(width), eps_(eps) {
  weight = register_parameter("weight", declared_parameter({width}));
  bias = register_parameter("bias", declared_parameter({width}));
}

at::Tensor LayerNorm::forward(const at::Tensor& input) const {
  return at::layer_norm(input, {width_}, weight, bias, eps_);
}

void materialize(torch::nn::Module& model, const std::function<void(const std::string& name, at::Tensor value)>& fill) {
  const at::NoGradGuard no_grad;
  std::unordered_set<const at::TensorImpl*> done;
  for (auto& item : model.named_parameters()) {
    at::Tensor& parameter = item.value();
    if (!done.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (parameter.numel() == 0 || parameter.storage().nbytes() > 0) continue;
    at::Tensor value = at::empty(parameter.sizes(), parameter.options().requires_grad(false));
    fill(item.key(), value);
    parameter.set_data(value);
  }
}

}  // namespace tessera::nn

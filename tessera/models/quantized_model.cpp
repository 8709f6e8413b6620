#include "tessera/models/quantized_model.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/models/adapters.h"
#include "tessera/models/model_decorator.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/nf4_product.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::models {
namespace {

size_t quantize_frozen_layers(Network& network) {
  size_t count = 0;
  for (const AdaptableLayer& layer : adaptable_layers(network)) {
    const auto parameters = layer.module->named_parameters(/*recurse=*/false);
    const at::Tensor* const weight = parameters.find("weight");
    if (weight == nullptr || weight->requires_grad()) continue;
    layer.adaptable->quantize();
    ++count;
  }
  return count;
}

class QuantizedModel final : public ModelDecorator {
 public:
  using ModelDecorator::ModelDecorator;

  std::shared_ptr<Network> network_over(const nn::TensorAxis& axis) const override {
    std::shared_ptr<Network> network = ModelDecorator::network_over(axis.in_blocks(nn::kNf4Block));
    quantize_frozen_layers(*network);
    return network;
  }
};

}  // namespace

std::unique_ptr<Model> with_nf4_weights(std::unique_ptr<Model> model, const std::string& where) {
  if (quantize_frozen_layers(*model->network()) == 0) {
    throw Error(ErrorKind::kConfig, {"the model has no frozen linear layer whose weight could be quantized", where,
                                     "leave model.quantization out"});
  }
  return std::make_unique<QuantizedModel>(std::move(model));
}

}  // namespace tessera::models

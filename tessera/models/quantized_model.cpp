#include "tessera/models/quantized_model.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/layers.h"

namespace tessera::models {
namespace {

size_t quantize_frozen_layers(Network& network) {
  size_t count = 0;
  for (const auto& item : network.named_modules("", /*include_self=*/false)) {
    auto* const layer = dynamic_cast<nn::Adaptable*>(item.value().get());
    if (layer == nullptr) continue;
    const auto parameters = item.value()->named_parameters(/*recurse=*/false);
    const at::Tensor* const weight = parameters.find("weight");
    if (weight == nullptr || weight->requires_grad()) continue;
    layer->quantize();
    ++count;
  }
  return count;
}

class QuantizedModel final : public Model {
 public:
  explicit QuantizedModel(std::unique_ptr<Model> model) : model_(std::move(model)) {}

  void set_dropout(double probability) override { model_->set_dropout(probability); }

  std::shared_ptr<Network> network() const override {
    std::shared_ptr<Network> network = model_->network();
    quantize_frozen_layers(*network);
    return network;
  }

  void initialize(uint64_t seed, const std::string& name, at::Tensor value) const override {
    model_->initialize(seed, name, std::move(value));
  }

  bool decays(const std::string& name) const override { return model_->decays(name); }
  std::string base_prefix() const override { return model_->base_prefix(); }
  int64_t vocab_size() const override { return model_->vocab_size(); }
  int64_t max_positions() const override { return model_->max_positions(); }
  int64_t hidden_size() const override { return model_->hidden_size(); }
  std::optional<Architecture> architecture() const override { return model_->architecture(); }

 private:
  std::unique_ptr<Model> model_;
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

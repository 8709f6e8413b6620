#include "tessera/models/initial_values.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include "tessera/base/log.h"
#include "tessera/nn/lora.h"
#include "tessera/storage/peft_format.h"

namespace tessera::models {

InitialValues::InitialValues(const Model& model, const Network& network, const std::string& weights, uint64_t seed,
                             const std::string& adapter)
    : model_(model), seed_(seed) {
  std::vector<std::string> names, adapter_names;
  for (const auto& item : network.named_parameters()) {
    names.push_back(item.key());
    adapter_names.push_back(storage::kAdapterPrefix + item.key());
  }
  if (!weights.empty()) {
    weights_ = std::make_unique<PretrainedWeights>(weights, model.base_prefix());
    unexpected_ = weights_->unexpected(names);
  }
  if (!adapter.empty()) {
    adapter_ =
        std::make_unique<PretrainedWeights>(PretrainedWeights::of_file(adapter + "/" + storage::kAdapterWeights));
    for (std::string& name : adapter_->unexpected(adapter_names)) unexpected_.push_back(std::move(name));
  }
}

void InitialValues::fill(const std::string& name, at::Tensor value) {
  if (adapter_ && adapter_->fill(storage::kAdapterPrefix + name, value)) return;
  if (weights_ && weights_->fill(name, value)) return;
  model_.initialize(seed_, name, value);
  if (adapter_ || !nn::is_lora_parameter(name)) missing_.push_back(name);  // a new adapter lies nowhere
}

void InitialValues::report() const {
  if (!weights_) {
    log_info("the model starts from random weights (model.init: random)");
    return;
  }
  if (!missing_.empty()) log_warning("not in the weights, so initialized at random: {}", fmt::join(missing_, ", "));
  if (!unexpected_.empty()) log_warning("in the weights but not in the model: {}", fmt::join(unexpected_, ", "));
}

void draw_normal(uint64_t seed, const std::string& name, double deviation, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  value.normal_(0, deviation, at::make_generator<at::CPUGeneratorImpl>(seed_of_parameter(seed, name)));
}

}  // namespace tessera::models

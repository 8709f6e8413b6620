#include "tessera/models/initial_values.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "tessera/base/log.h"
#include "tessera/comm/group.h"
#include "tessera/models/adapters.h"
#include "tessera/nn/lora.h"
#include "tessera/storage/peft_format.h"

namespace tessera::models {
namespace {

bool is_below(const std::string& parameter, const std::vector<std::string>& modules) {
  return std::any_of(modules.begin(), modules.end(),
                     [&](const std::string& module) { return parameter.starts_with(module + "."); });
}

}  // namespace

InitialValues::InitialValues(const Model& model, const Network& network, const std::string& weights, uint64_t seed,
                             const std::string& adapter)
    : model_(model), seed_(seed) {
  std::vector<std::string> names, adapter_names;
  for (const auto& item : network.named_parameters()) {
    names.push_back(item.key());
    adapter_names.push_back(storage::kAdapterPrefix + item.key());
  }
  for (const AdaptableLayer& layer : adaptable_layers(network)) adaptable_[layer.name] = layer.adaptable;
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
  const size_t end_of_path = name.rfind('.');
  const std::string path = name.substr(0, end_of_path), parameter = name.substr(end_of_path + 1);
  const auto found = adaptable_.find(path);
  const bool is_of_nf4 = found != adaptable_.end() && found->second->is_quantized() &&
                         (parameter == "weight" || parameter == nn::kNestedScales);
  if (!is_of_nf4) return fill_floating(name, value);
  at::Tensor& wanted = parameter == "weight" ? quantized_.bytes.blocks : quantized_.bytes.nested;
  if (path != quantized_.path || !wanted.defined())
    quantized_ = {.path = path, .bytes = quantized(path, *found->second)};
  value.copy_(std::exchange(wanted, at::Tensor()));
}

nn::Nf4 InitialValues::quantized(const std::string& path, const nn::Adaptable& layer) {
  const at::Tensor weight = at::empty(layer.weight_shape(), at::kFloat);
  fill_floating(path + ".weight", weight);
  return nn::quantized(layer.is_transposed() ? weight.t() : weight);
}

void InitialValues::fill_floating(const std::string& name, const at::Tensor& value) {
  if (adapter_ && adapter_->fill(storage::kAdapterPrefix + name, value)) return;
  if (nn::is_lora_magnitude(name)) {
    fill_magnitude(name, value);
  } else {
    if (weights_ && weights_->fill(name, value)) return;
    model_.initialize(seed_, name, value);
  }
  if (adapter_ || !nn::is_lora_parameter(name)) missing_.push_back(name);  // a new adapter lies nowhere
}

void InitialValues::fill_of_model(const std::string& name, const at::Tensor& value) {
  if (!weights_ || !weights_->fill(name, value)) model_.initialize(seed_, name, value);
}

// Liu et al. 2024, section 4.1: m begins as the norms of the rows of W, as the layer has it, so that nothing changes at
// first. Row by row as nn::adapted_row_norms takes them, with matrices of a new adapter that add nothing.
void InitialValues::fill_magnitude(const std::string& name, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  const std::string path = name.substr(0, name.rfind('.'));
  const nn::Adaptable& layer = *adaptable_.at(path);
  at::Tensor weight = at::empty(layer.weight_shape(), at::kFloat);
  fill_of_model(path + ".weight", weight);
  if (layer.is_transposed()) weight = weight.t();
  if (layer.is_quantized()) {
    const nn::Nf4Part whole = nn::Nf4Part::whole(weight.size(0), weight.size(1));
    weight = nn::dequantized({.bytes = nn::quantized(weight), .part = whole}, at::kFloat);
  }
  const at::Tensor a = at::zeros({1, weight.size(1)}), b = at::zeros({weight.size(0), 1});
  value.copy_(nn::adapted_row_norms(weight, a, b, /*scale=*/1));
}

void InitialValues::report(const std::vector<std::string>& new_modules, comm::Group& parts) const {
  const std::string mine = fmt::format("{}", fmt::join(missing_, "\n"));
  const std::vector<std::string> texts = parts.exchange_texts(mine, "the weights that are missing");
  if (parts.rank() != 0) return;
  if (!weights_) {
    log_info("the model starts from random weights (model.init: random)");
    return;
  }
  std::vector<std::string> fresh, missing;
  std::set<std::string> seen;
  for (const std::string& text : texts) {
    std::istringstream lines(text);
    for (std::string name; std::getline(lines, name);) {
      if (seen.insert(name).second) (is_below(name, new_modules) ? fresh : missing).push_back(name);
    }
  }
  if (!fresh.empty()) log_info("new: {}", fmt::join(fresh, ", "));
  if (!missing.empty()) log_warning("not in the weights, so initialized at random: {}", fmt::join(missing, ", "));
  if (!unexpected_.empty()) log_warning("in the weights but not in the model: {}", fmt::join(unexpected_, ", "));
}

void draw_normal(uint64_t seed, const std::string& name, double deviation, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  value.normal_(0, deviation, at::make_generator<at::CPUGeneratorImpl>(seed_of_parameter(seed, name)));
}

}  // namespace tessera::models

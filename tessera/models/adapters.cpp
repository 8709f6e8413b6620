#include "tessera/models/adapters.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/config/run_file.h"
#include "tessera/models/model_decorator.h"
#include "tessera/nn/layers.h"
#include "tessera/storage/peft_format.h"

namespace tessera::models {
namespace {

using nlohmann::json;

constexpr const char* kAllLinear = "all-linear";

bool ends_with_name(const std::string& module, const std::string& name) {
  return module == name ||
         (module.size() > name.size() && module.ends_with(name) && module[module.size() - name.size() - 1] == '.');
}

// As PEFT matches the items of target_modules; patterns are ours.
bool fits(const std::string& module, const std::string& target) {
  return target == kAllLinear || ends_with_name(module, target) || fnmatch(target.c_str(), module.c_str(), 0) == 0;
}

bool fits_any(const std::string& module, const std::vector<std::string>& targets) {
  return std::any_of(targets.begin(), targets.end(), [&](const std::string& target) { return fits(module, target); });
}

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// Names of the layers that can be adapted, in the network's order.
std::vector<std::string> adaptable_modules(const Network& network) {
  std::vector<std::string> names;
  for (AdaptableLayer& layer : adaptable_layers(network)) names.push_back(std::move(layer.name));
  return names;
}

std::vector<std::string> last_parts(const std::vector<std::string>& modules) {
  std::vector<std::string> parts;
  for (const std::string& module : modules) {
    const std::string part = last_part(module);
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
  }
  return parts;
}

// Whether a parameter is one of a module that is trained whole.
bool is_saved_whole(const std::string& parameter, const std::vector<std::string>& modules_to_save) {
  for (size_t dot = parameter.rfind('.'); dot != std::string::npos && dot > 0; dot = parameter.rfind('.', dot - 1)) {
    const std::string module = parameter.substr(0, dot);
    if (std::any_of(modules_to_save.begin(), modules_to_save.end(),
                    [&](const auto& name) { return ends_with_name(module, name); }))
      return true;
  }
  return false;
}

class AdaptedModel final : public ModelDecorator {
 public:
  AdaptedModel(std::unique_ptr<Model> model, AdapterOptions options)
      : ModelDecorator(std::move(model)), options_(std::move(options)) {}

  std::shared_ptr<Network> network_over(const nn::TensorAxis& axis) const override {
    std::shared_ptr<Network> network = ModelDecorator::network_over(axis);
    for (const AdaptableLayer& layer : adaptable_layers(*network)) {
      if (fits_any(layer.name, options_.targets)) layer.adaptable->adapt(options_.lora);
    }
    for (auto& item : network->named_parameters()) {
      item.value().requires_grad_(nn::is_lora_parameter(item.key()) ||
                                  is_saved_whole(item.key(), options_.modules_to_save));
    }
    return network;
  }

  void initialize(uint64_t seed, const std::string& name, at::Tensor value) const override {
    if (!nn::is_lora_parameter(name)) return ModelDecorator::initialize(seed, name, std::move(value));
    TESSERA_INVARIANT(!nn::is_lora_magnitude(name));
    const at::NoGradGuard no_grad;
    if (name.ends_with(".lora_B.weight")) {
      value.zero_();
      return;
    }
    // kaiming_uniform_(a = sqrt(5)): gain sqrt(2 / (1 + 5)), bound gain * sqrt(3 / fan_in) = 1 / sqrt(fan_in)
    const double bound = 1 / std::sqrt(static_cast<double>(value.size(1)));
    value.uniform_(-bound, bound, at::make_generator<at::CPUGeneratorImpl>(seed_of_parameter(seed, name)));
  }

  bool decays(const std::string& name) const override {
    return nn::is_lora_parameter(name) || ModelDecorator::decays(name);
  }

 private:
  AdapterOptions options_;
};

void require_fitting(const Network& network, const AdapterOptions& options, const std::string& where) {
  const std::vector<std::string> layers = adaptable_modules(network);
  for (const std::string& target : options.targets) {
    if (std::any_of(layers.begin(), layers.end(), [&](const auto& layer) { return fits(layer, target); })) continue;
    throw Error(ErrorKind::kConfig,
                {fmt::format("no linear layer of the model is called '{:.100}'", target), where,
                 fmt::format("use all-linear, or some of: {}", fmt::join(last_parts(layers), ", "))});
  }
  for (const std::string& name : options.modules_to_save) {
    const auto modules = network.named_modules("", /*include_self=*/false);
    const bool found =
        std::any_of(modules.begin(), modules.end(), [&](const auto& item) { return ends_with_name(item.key(), name); });
    if (!found) {
      throw Error(ErrorKind::kConfig,
                  {fmt::format("no module of the model is called '{:.100}'", name), where, "check modules_to_save"});
    }
  }
}

[[noreturn]] void refuse_peft(const std::string& what, const std::string& path, const std::string& fix) {
  throw Error(ErrorKind::kData, {what, path, fix});
}

std::vector<std::string> texts_of(const json& value, const char* key, const std::string& path) {
  if (value.is_null()) return {};
  if (value.is_string()) return {value.get<std::string>()};
  std::vector<std::string> texts;
  for (const json& each : value) {
    if (!each.is_string())
      refuse_peft(fmt::format("'{}' is not a list of names", key), path, "check the file, or get it again");
    texts.push_back(each.get<std::string>());
  }
  return texts;
}

// What PEFT has and this does not; each stands in the file with a value that asks for nothing.
void refuse_unsupported(const json& config, const std::string& path) {
  const auto type = json_value(config, "peft_type", std::string("LORA"), path);
  if (type != "LORA") refuse_peft(fmt::format("the adapter is of type '{:.50}'", type), path, "only LORA is supported");
  for (const char* const key : {"lora_bias", "use_qalora", "use_bdlora"}) {
    if (config.contains(key) && config.at(key).is_boolean() && config.at(key).get<bool>()) {
      refuse_peft(fmt::format("the adapter has '{}', which is not supported", key), path, "use one without");
    }
  }
  for (const char* const key : {"rank_pattern", "alpha_pattern", "layers_to_transform", "layer_replication",
                                "target_parameters", "trainable_token_indices", "exclude_modules", "megatron_config"}) {
    const json value = config.value(key, json());
    if (!value.is_null() && !value.empty())
      refuse_peft(fmt::format("the adapter has '{}', which is not supported", key), path, "use one without");
  }
  if (const auto bias = json_value(config, "bias", std::string("none"), path); bias != "none") {
    refuse_peft(fmt::format("the adapter trains biases ('bias' is '{:.50}'), which is not supported", bias), path,
                "use one whose bias is none");
  }
}

}  // namespace

std::unique_ptr<Model> with_adapter(std::unique_ptr<Model> model, const AdapterOptions& options,
                                    const std::string& where) {
  require_fitting(*model->network(), options, where);
  return std::make_unique<AdaptedModel>(std::move(model), options);
}

std::vector<AdaptableLayer> adaptable_layers(const Network& network) {
  std::vector<AdaptableLayer> layers;
  for (const auto& item : network.named_modules("", /*include_self=*/false)) {
    auto* const adaptable = dynamic_cast<nn::Adaptable*>(item.value().get());
    if (adaptable != nullptr) layers.push_back({item.key(), item.value(), adaptable});
  }
  return layers;
}

AdapterSwitch::AdapterSwitch(Network& network) {
  for (const AdaptableLayer& layer : adaptable_layers(network)) layers_.push_back(layer.adaptable);
}

void AdapterSwitch::enable(bool on) {
  for (nn::Adaptable* const layer : layers_) layer->enable_adapter(on);
}

nlohmann::ordered_json peft_config(const Model& adapted, const AdapterOptions& options, const std::string& base) {
  // PEFT matches the ends of names; whole names where such an end would fit a layer that has no branch.
  const std::vector<std::string> layers = adaptable_modules(*adapted.network());
  std::vector<std::string> chosen;
  for (const std::string& layer : layers) {
    if (!nn::is_lora_parameter(layer + ".weight") && fits_any(layer, options.targets)) chosen.push_back(layer);
  }
  std::vector<std::string> ends = last_parts(chosen);
  const bool ends_do = std::all_of(layers.begin(), layers.end(), [&](const std::string& layer) {
    const bool by_end = std::find(ends.begin(), ends.end(), last_part(layer)) != ends.end();
    return !by_end || std::find(chosen.begin(), chosen.end(), layer) != chosen.end();
  });
  nlohmann::ordered_json saved = nullptr;
  if (!options.modules_to_save.empty()) saved = options.modules_to_save;
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base},
          {"r", options.lora.rank},
          {"lora_alpha", options.lora.alpha},
          {"lora_dropout", options.lora.dropout},
          {"use_rslora", options.lora.rank_stabilized},
          {"use_dora", options.lora.dora},
          {"target_modules", ends_do ? ends : chosen},
          {"modules_to_save", saved},
          {"bias", "none"},
          {"inference_mode", true}};
}

bool is_peft_folder(const std::string& folder) {
  return std::filesystem::is_regular_file(std::filesystem::path(folder) / storage::kAdapterConfig);
}

PeftFolder read_peft_folder(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / storage::kAdapterConfig).string();
  const json config = read_json_file(path);
  refuse_unsupported(config, path);
  PeftFolder found{.options = {}, .base = json_value(config, "base_model_name_or_path", std::string(), path)};
  nn::LoraOptions& lora = found.options.lora;
  lora.rank = json_value<int64_t>(config, "r", 8, path);
  lora.alpha = json_value(config, "lora_alpha", 8.0, path);
  lora.dropout = json_value(config, "lora_dropout", 0.0, path);
  lora.rank_stabilized = json_value(config, "use_rslora", false, path);
  lora.dora = json_value(config, "use_dora", false, path);
  if (lora.rank < 1 || lora.rank > config::RunFile::Adapter::kLargestRank || !(lora.dropout >= 0 && lora.dropout < 1)) {
    refuse_peft(fmt::format("'r' is {} and 'lora_dropout' {}", lora.rank, lora.dropout), path,
                "check the file, or get it again");
  }
  found.options.targets = texts_of(config.value("target_modules", json()), "target_modules", path);
  found.options.modules_to_save = texts_of(config.value("modules_to_save", json()), "modules_to_save", path);
  if (found.options.targets.empty())
    refuse_peft("'target_modules' names none", path, "check the file, or get it again");
  return found;
}

std::string base_of(const std::string& folder) {
  const std::string base = read_peft_folder(folder).base;
  if (!base.empty() && std::filesystem::is_directory(base)) return base;
  throw Error(ErrorKind::kData,
              {base.empty() ? "the adapter does not say which model it belongs to"
                            : fmt::format("the adapter belongs to the model '{:.300}', which is no folder here", base),
               folder, "name the model's folder with --model, and this one with --adapter"});
}

}  // namespace tessera::models

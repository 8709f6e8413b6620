#include "tessera/plan/census.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/json_text.h"
#include "tessera/models/adapters.h"
#include "tessera/models/model.h"
#include "tessera/models/models.h"
#include "tessera/models/quantized_model.h"
#include "tessera/models/stages.h"
#include "tessera/nn/context_axis.h"

namespace tessera::plan {
namespace {

namespace fs = std::filesystem;

// "model.layers.3" of "model.layers.3.mlp.weight": a numbered block is a unit, anything else a module of its own.
std::string unit_of(const std::string& tensor, const std::string& module) {
  size_t begin = 0;
  while (begin < tensor.size()) {
    const size_t end = std::min(tensor.find('.', begin), tensor.size());
    const bool is_number = end > begin && std::all_of(tensor.begin() + static_cast<std::ptrdiff_t>(begin),
                                                      tensor.begin() + static_cast<std::ptrdiff_t>(end),
                                                      [](unsigned char c) { return std::isdigit(c) != 0; });
    if (is_number) return tensor.substr(0, end);
    begin = end + 1;
  }
  return module;
}

ModelCensus census_of_weights(const std::string& folder) {
  const auto shapes = models::PretrainedWeights(folder, "").shapes();
  ModelCensus census{.source =
                         fmt::format("{} in {}", count_of(static_cast<int64_t>(shapes.size()), "tensor"), folder)};
  std::map<std::string, int64_t> modules;
  std::map<std::string, size_t> units;
  for (const auto& [name, shape] : shapes) {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    const size_t dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "" : name.substr(0, dot);
    const auto [unit, is_new] = units.try_emplace(unit_of(name, module), census.units.size());
    if (is_new) census.units.push_back({unit->first});
    UnitCensus& counted = census.units[unit->second];
    counted.numel += numel;
    counted.largest_tensor = std::max(counted.largest_tensor, numel);
    census.params += numel;
    census.largest_layer = std::max(census.largest_layer, modules[module] += numel);
  }
  return census;
}

ModelCensus census_over(const models::Model& model, const std::string& class_name, const std::string& where,
                        const Sharing& sharing) {
  if (sharing.context > 1) {
    model.network()->share_sequences(nn::ContextAxis::of_size(static_cast<int>(sharing.context)));
  }
  const models::PartRanks ranks{.tensor = static_cast<int>(sharing.tensor)};
  if (sharing.pipeline == 1) return models::census_of(model, class_name, where, ranks);
  const auto network = model.network();
  const size_t links = network->links().size();
  if (static_cast<size_t>(sharing.pipeline) > links) {
    throw Error(ErrorKind::kConfig, {fmt::format("the model cannot be cut into {} stages", sharing.pipeline), where,
                                     fmt::format("use at most {}", std::max<size_t>(1, links))});
  }
  const auto stages = static_cast<int>(sharing.pipeline);
  return models::census_of_stages(
      model, class_name, where, ranks,
      models::balanced_stages(*network, pipeline::make_schedule("1f1b", {.ranks = stages, .micro_batches = stages}),
                              model.architecture() ? model.architecture()->usual_target_share : 1));
}

}  // namespace

std::optional<ModelCensus> census_of_config(const nlohmann::json& config, const std::string& where,
                                            const CensusOptions& options) {
  const models::ModelConfig file{.values = config, .path = where};
  const std::string type = models::model_type_of(file);
  const auto* const trainable = models::models().table().lookup(type);
  if (trainable == nullptr) return std::nullopt;
  const models::ModelClass& first = trainable->make.classes.front();
  std::unique_ptr<models::Model> model = trainable->make.read(file, first);
  if (options.adapter_rank > 0) {
    model = models::with_adapter(std::move(model), {.lora = {.rank = options.adapter_rank}}, where);
  }
  if (options.nf4) model = models::with_nf4_weights(std::move(model), where);
  return census_over(*model, first.name, where, options.sharing);
}

std::vector<std::string> known_model_types() { return models::models().table().names(); }

ModelCensus read_census(const std::string& folder, const CensusOptions& options) {
  if (!fs::is_directory(folder)) {
    throw Error(ErrorKind::kData,
                {"the model folder does not exist", folder, "name a folder with config.json or safetensors files"});
  }
  const std::string path = (fs::path(folder) / "config.json").string();
  std::string type;
  if (fs::exists(path)) {
    const nlohmann::json config = read_json_file(path);
    if (auto census = census_of_config(config, path, options)) return *std::move(census);
    type = models::model_type_of({.values = config, .path = path});
  }
  if (options.adapter_rank > 0) {
    throw Error(ErrorKind::kData,
                {fmt::format("the layers of a '{}' are not known, so neither is an adapter's size", type), folder,
                 "estimate the model without an adapter"});
  }
  if (options.sharing.ranks() > 1) {
    throw Error(ErrorKind::kConfig,
                {fmt::format("the layers of a '{}' are not known, so neither is a part of it", type), folder,
                 "estimate it for data-parallel ranks alone"});
  }
  const bool has_weights = fs::exists(fs::path(folder) / "model.safetensors") ||
                           fs::exists(fs::path(folder) / "model.safetensors.index.json");
  if (has_weights) return census_of_weights(folder);
  const std::string known = fmt::format("{}", fmt::join(known_model_types(), ", "));
  if (type.empty()) {
    throw Error(ErrorKind::kData, {"the model folder has neither config.json nor safetensors files", folder,
                                   "name a folder that has one of them, or give --params"});
  }
  throw Error(ErrorKind::kData,
              {fmt::format("the sizes of a '{}' are not known, and the folder has no safetensors files", type), path,
               fmt::format("known model types: {}; for another model give its weights, or --params", known)});
}

}  // namespace tessera::plan

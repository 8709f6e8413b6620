#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/error.h"
#include "tessera/models/model.h"
#include "tessera/models/state_dict_pickle.h"
#include "tessera/storage/safetensors.h"

namespace tessera::models {
namespace fs = std::filesystem;

struct PretrainedWeights::Source {
  std::shared_ptr<storage::SafetensorsFile> file;
  at::Tensor tensor;  // of a pickle

  at::Tensor get(const std::string& name) const { return file ? file->tensor(name) : tensor; }
};

PretrainedWeights::PretrainedWeights(const std::string& folder, std::string base_prefix)
    : base_prefix_(std::move(base_prefix)) {
  const std::string whole = folder + "/model.safetensors";
  const std::string index = folder + "/model.safetensors.index.json";
  const std::string pickle = folder + "/pytorch_model.bin";
  if (fs::exists(whole)) {
    read_safetensors(whole);
  } else if (fs::exists(index)) {
    read_index(folder, index);
  } else if (fs::exists(pickle)) {
    for (const auto& [name, tensor] : read_state_dict(pickle)) sources_[name] = {nullptr, tensor};
  } else {
    throw Error(ErrorKind::kData,
                {"the model folder has no weights: neither model.safetensors, model.safetensors.index.json nor "
                 "pytorch_model.bin",
                 folder, "give a folder with weights, or start from scratch with 'model.init: random'"});
  }
}

PretrainedWeights::~PretrainedWeights() = default;

void PretrainedWeights::read_safetensors(const std::string& path) {
  const auto file = std::make_shared<storage::SafetensorsFile>(path);
  for (const auto& [name, entry] : file->entries()) sources_[name] = {file, {}};
}

void PretrainedWeights::read_index(const std::string& folder, const std::string& path) {
  std::ifstream stream(path);
  const auto index = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw Error(ErrorKind::kData, {"the index has no weight_map", path, "download the file again"});
  }
  std::set<std::string> names;
  for (const auto& [name, file] : index["weight_map"].items()) names.insert(file.get<std::string>());
  for (const std::string& name : names) read_safetensors(folder + "/" + name);
}

const std::pair<const std::string, PretrainedWeights::Source>* PretrainedWeights::find(const std::string& name) const {
  std::vector<std::string> spellings{name};
  spellings.push_back(name.starts_with(base_prefix_) ? name.substr(base_prefix_.size()) : base_prefix_ + name);
  for (const size_t i : {0, 1}) {
    const std::string& spelling = spellings[i];
    if (spelling.ends_with("LayerNorm.weight")) {
      spellings.push_back(spelling.substr(0, spelling.size() - 6) + "gamma");
    } else if (spelling.ends_with("LayerNorm.bias")) {
      spellings.push_back(spelling.substr(0, spelling.size() - 4) + "beta");
    }
  }
  for (const std::string& spelling : spellings) {
    const auto found = sources_.find(spelling);
    if (found != sources_.end()) return &*found;
  }
  return nullptr;
}

bool PretrainedWeights::fill(const std::string& name, at::Tensor value) const {
  const auto* const found = find(name);
  if (found == nullptr) return false;
  const at::NoGradGuard no_grad;
  const at::Tensor tensor = found->second.get(found->first);
  if (tensor.sizes() != value.sizes()) {
    throw Error(ErrorKind::kData,
                {fmt::format("'{}' has shape [{}], but the model's config.json asks for [{}]", found->first,
                             fmt::join(tensor.sizes().vec(), ", "), fmt::join(value.sizes().vec(), ", ")),
                 found->second.file ? found->second.file->path() : "pytorch_model.bin",
                 "weights and config.json must belong to the same model"});
  }
  value.copy_(tensor);
  return true;
}

std::map<std::string, std::vector<int64_t>> PretrainedWeights::shapes() const {
  std::map<std::string, std::vector<int64_t>> result;
  for (const auto& [name, source] : sources_) {
    result[name] = source.file ? source.file->entries().at(name).shape : source.tensor.sizes().vec();
  }
  return result;
}

std::vector<std::string> PretrainedWeights::unexpected(const std::vector<std::string>& names) const {
  std::set<std::string> used;
  for (const std::string& name : names) {
    if (const auto* const found = find(name)) used.insert(found->first);
  }
  std::vector<std::string> rest;
  for (const auto& [name, source] : sources_) {
    if (!used.contains(name) && !name.ends_with("position_ids")) rest.push_back(name);  // a constant, not a weight
  }
  return rest;
}

}  // namespace tessera::models

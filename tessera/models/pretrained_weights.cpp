#include <ATen/core/grad_mode.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/plain_name.h"
#include "tessera/models/model.h"
#include "tessera/models/state_dict_pickle.h"
#include "tessera/storage/dtype.h"
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

PretrainedWeights::PretrainedWeights() = default;
PretrainedWeights::~PretrainedWeights() = default;
PretrainedWeights::PretrainedWeights(PretrainedWeights&&) noexcept = default;

PretrainedWeights PretrainedWeights::of_file(const std::string& path) {
  PretrainedWeights weights;
  weights.read_safetensors(path);
  return weights;
}

void PretrainedWeights::read_safetensors(const std::string& path) {
  const auto file = std::make_shared<storage::SafetensorsFile>(path);
  for (const auto& [name, entry] : file->entries()) sources_[name] = {file, {}};
}

void PretrainedWeights::read_index(const std::string& folder, const std::string& path) {
  const nlohmann::json index = read_json_file(path);
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kData, {what, path, "download the file again"});
  };
  if (!index.contains("weight_map") || !index["weight_map"].is_object()) refuse("the index has no weight_map");
  std::set<std::string> names;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get_ref<const std::string&>())) {
      refuse(fmt::format("the weight_map does not name a file of this folder for '{}'", name));
    }
    names.insert(file.get<std::string>());
  }
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

namespace {

// Not finite where one of the values is not. In pieces, as a copy of the whole may be large.
double sum_of(const at::Tensor& values) {
  constexpr int64_t kPiece = 1 << 20;
  const at::Tensor flat = values.flatten();
  double sum = 0;
  for (int64_t at = 0; at < flat.numel(); at += kPiece) {
    sum += flat.narrow(0, at, std::min(kPiece, flat.numel() - at)).to(at::kDouble).sum().item<double>();
  }
  return sum;
}

}  // namespace

bool PretrainedWeights::fill(const std::string& name, at::Tensor value) const {
  const auto* const found = find(name);
  if (found == nullptr) return false;
  const at::NoGradGuard no_grad;
  const at::Tensor tensor = found->second.get(found->first);
  const auto refuse = [&, &source = found->second](const std::string& what, const std::string& fix) {
    throw Error(ErrorKind::kData, {fmt::format("'{}' {}", found->first, what),
                                   source.file ? source.file->path() : "pytorch_model.bin", fix});
  };
  if (tensor.sizes() != value.sizes()) {
    refuse(fmt::format("has shape [{}], but the model's config.json asks for [{}]",
                       fmt::join(tensor.sizes().vec(), ", "), fmt::join(value.sizes().vec(), ", ")),
           "weights and config.json must belong to the same model");
  }
  if (!tensor.is_floating_point()) {
    refuse(fmt::format("holds {}, which are no weights", storage::short_name(tensor.scalar_type())),
           "convert the weights to a floating dtype");
  }
  value.copy_(tensor);
  if (found->second.file) found->second.file->release(found->first);
  if (!std::isfinite(sum_of(value))) {
    refuse("has values that are not finite",
           "the weights were damaged, or saved by training that diverged: use others");
  }
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

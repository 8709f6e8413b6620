#include "tessera/models/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/json_text.h"
#include "tessera/nn/context_axis.h"
#include "tessera/nn/expert_axis.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::models {

ModelConfig read_model_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  if (!std::filesystem::is_directory(folder)) {
    throw Error(ErrorKind::kData, {"the model folder does not exist", folder, "check the path of the model"});
  }
  if (!std::filesystem::exists(path)) {
    const std::string exported = folder + "/export";  // of a run's output
    const bool is_there = std::filesystem::exists(exported + "/config.json");
    throw Error(ErrorKind::kData, {"the model folder has no config.json", path,
                                   is_there ? "name the exported model, " + exported : "check the path of the model"});
  }
  ModelConfig config{.values = read_json_file(path), .path = path};
  // BERT's first configurations name no type, but BERT's sizes.
  if (!config.values.contains("model_type") && !config.values.contains("hidden_size")) {
    throw Error(ErrorKind::kData, {"there is no 'model_type'", path, "name it, as in \"model_type\": \"bert\""});
  }
  return config;
}

std::vector<at::Tensor> Network::run_links(size_t /*first*/, size_t /*end*/,
                                           const std::vector<at::Tensor>& /*entering*/, const NamedTensors& /*batch*/) {
  TESSERA_INVARIANT(!"a network that has links runs them");
}

void Network::share_sequences(const nn::ContextAxis& axis) {
  if (axis.size() == 1) return;
  throw Error(ErrorKind::kConfig, {"this model's sequences cannot be shared by several ranks yet", "parallel.context",
                                   "use 1; the Llama family, Gemma 3 and GPT-2 can"});
}

std::vector<std::string> Network::share_experts(const nn::ExpertAxis& axis) {
  if (axis.size() == 1) return {};
  throw Error(ErrorKind::kConfig, {fmt::format("this model has no experts to share out over {} ranks", axis.size()),
                                   "parallel.expert", "leave parallel.expert out"});
}

void Model::set_router_losses(std::optional<double> balance, std::optional<double> z) {
  if (!balance && !z) return;
  throw Error(ErrorKind::kConfig, {"this model has no experts whose choice a loss could balance",
                                   balance ? "model.router_balance_loss" : "model.router_z_loss", "leave it out"});
}

std::shared_ptr<Network> Model::network_over(const nn::TensorAxis& axis) const {
  if (axis.size() == 1) return network();
  throw Error(ErrorKind::kConfig,
              {fmt::format("this model cannot be cut over {} ranks", axis.size()), "parallel.tensor",
               "use 1: its class has no network_over(), which says how, as all models of models/ have"});
}

const at::Tensor& NamedTensors::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, tensor] : tensors_) names.push_back(known);
  throw Error(ErrorKind::kUsage,
              {fmt::format("the batch has no '{}'", name), "Network::loss_sum",
               fmt::format("use a task whose batches have it; this one's hold {}", fmt::join(names, ", "))});
}

at::Tensor NamedTensors::get(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? at::Tensor() : found->second;
}

uint64_t seed_of_parameter(uint64_t seed, const std::string& name) {
  return fnv1a(name, kFnvOffset ^ (seed * 0x9e3779b97f4a7c15));
}

}  // namespace tessera::models

#include "tessera/train/model_of_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/models/models.h"

namespace tessera::train {

void require_model_of(const std::filesystem::path& checkpoint, const std::filesystem::path& model) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(checkpoint::resolve(checkpoint));
  const nlohmann::json& noted = manifest.client_state;
  if (!noted.contains("model_folder") || noted.contains("adapter")) return;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kUsage, {"the checkpoint is of another model: " + what, model.string(),
                                    "name the folder that training started from"});
  };

  models::ModelConfig config = models::read_model_config(model.string());
  config.values.update(noted.value("config", nlohmann::json::object()));
  const auto* const entry = models::models().table().lookup(models::model_type_of(config));
  if (entry == nullptr) return;
  const models::ModelType& type = entry->make;
  const std::string name = noted.value("architecture", "");
  const auto as =
      std::find_if(type.classes.begin(), type.classes.end(), [&](const auto& each) { return each.name == name; });
  if (as == type.classes.end()) {
    return refuse(fmt::format("it is a {}, and here is a '{}'", name, models::model_type_of(config)));
  }
  const auto network = type.read(config, *as)->network();
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& item : network->named_parameters()) shapes.emplace(item.key(), item.value().sizes().vec());

  for (const auto& [stored, tensor] : manifest.tensors) {
    const auto found = shapes.find(stored);
    if (found == shapes.end()) return refuse(fmt::format("it has '{}', and the model has not", stored));
    if (found->second == tensor.shape) continue;
    return refuse(fmt::format("it has '{}' of [{}], and the model of [{}]", stored, fmt::join(tensor.shape, ", "),
                              fmt::join(found->second, ", ")));
  }
  for (const auto& [known, shape] : shapes) {
    if (manifest.trainable_only || manifest.tensors.contains(known) || manifest.aliases.contains(known)) continue;
    return refuse(fmt::format("the model has '{}', and it has not", known));
  }
}

}  // namespace tessera::train

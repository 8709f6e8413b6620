#include "tessera/models/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/base/suggest.h"

namespace tessera::models {

OpenRegistry<ModelType>& models() {
  static OpenRegistry<ModelType> table(
      "model type", {
                        {"bert", "BERT (Devlin et al. 2018)", bert_model_type("bert")},
                        {"distilbert", "DistilBERT (Sanh et al. 2019)", bert_model_type("distilbert")},
                        {"gemma3_text", "Gemma 3, text", gemma3_model_type()},
                        {"gpt2", "GPT-2 (Radford et al. 2019)", gpt2_model_type()},
                        {"llama", "Llama 2 to 3.3, SmolLM 1 and 2, TinyLlama, Yi", llama_model_type("llama")},
                        {"mistral", "Mistral", llama_model_type("mistral")},
                        {"mixtral", "Mixtral (Jiang et al. 2024)", llama_model_type("mixtral")},
                        {"qwen2", "Qwen 1.5, 2 and 2.5", llama_model_type("qwen2")},
                        {"qwen2_moe", "Qwen 1.5 and 2, mixtures of experts", llama_model_type("qwen2_moe")},
                        {"qwen3", "Qwen 3", llama_model_type("qwen3")},
                        {"qwen3_moe", "Qwen 3, mixtures of experts", llama_model_type("qwen3_moe")},
                        {"roberta", "RoBERTa (Liu et al. 2019)", bert_model_type("roberta")},
                        {"t5", "T5 (Raffel et al. 2020), 1.0 and 1.1", t5_model_type()},
                        {"internlm2", "InternLM 2 and 2.5", llama_model_type("internlm2")},
                    });
  return table;
}

void add_model(const char* name, const char* summary, ModelType type) {
  models().add({name, summary, std::move(type)});
}

std::string model_type_of(const ModelConfig& config) {
  return json_value(config.values, "model_type", std::string("bert"), config.path);
}

const ModelType& find_model_type(const ModelConfig& config) {
  const std::string type = model_type_of(config);
  if (const auto* const entry = models().table().lookup(type)) return entry->make;
  const std::vector<std::string> known = models().table().names();
  const auto nearest = nearest_name(type, known);
  throw Error(ErrorKind::kData, {fmt::format("the model is a '{:.100}'", type), config.path,
                                 (nearest ? fmt::format("did you mean '{}'? ", *nearest) : "") +
                                     fmt::format("supported model types: {}", fmt::join(known, ", "))});
}

namespace {

// The class with this head, if config.json does not name others alone.
const ModelClass& class_for(const ModelConfig& config, const std::string& head, const std::string& user) {
  const std::vector<ModelClass>& classes = find_model_type(config).classes;
  const auto found = std::find_if(classes.begin(), classes.end(), [&](const auto& each) { return each.head == head; });
  if (found == classes.end()) {
    throw Error(ErrorKind::kData,
                {fmt::format("{} models for {}, and a '{}' is none", user, head, model_type_of(config)), config.path,
                 "use another model, or another task"});
  }
  const auto names = config.values.find("architectures");
  if (names == config.values.end() || !names->is_array()) return *found;
  std::vector<std::string> given;
  for (const auto& name : *names) given.push_back(name.is_string() ? name.get<std::string>() : name.dump());
  const std::vector<std::string>& fitting = found->weights_from;
  const bool fits = std::any_of(given.begin(), given.end(), [&](const std::string& name) {
    return std::find(fitting.begin(), fitting.end(), name) != fitting.end();
  });
  if (fits || given.empty()) return *found;
  throw Error(
      ErrorKind::kData,
      {fmt::format("the model is a {}, but {} a {}", fmt::join(given, ", "), user, found->name), config.path,
       fmt::format("use a folder with one of these: {}; other tasks are not supported yet", fmt::join(fitting, ", "))});
}

}  // namespace

FolderModel read_model(const std::string& folder, const std::string& head, const std::string& user,
                       const nlohmann::json& changes) {
  ModelConfig config = read_model_config(folder);
  config.values.update(changes);
  FolderModel found{.as = class_for(config, head, user)};
  found.model = find_model_type(config).read(config, found.as);
  return found;
}

}  // namespace tessera::models

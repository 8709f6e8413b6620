#include "tessera/models/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/suggest.h"

namespace tessera::models {

OpenRegistry<ModelType>& models() {
  static OpenRegistry<ModelType> table("model type", {
                                                         {"bert", "BERT (Devlin et al. 2018)", bert_model_type()},
                                                     });
  return table;
}

std::string model_type_of(const ModelConfig& config) {
  const auto type = config.values.find("model_type");
  return type != config.values.end() && type->is_string() ? type->get<std::string>() : "bert";
}

const ModelType& find_model_type(const ModelConfig& config) {
  const std::string type = model_type_of(config);
  if (const auto* const entry = models().lookup(type)) return entry->make;
  const std::vector<std::string> known = models().names();
  const auto nearest = nearest_name(type, known);
  throw Error(ErrorKind::kData, {fmt::format("the model is a '{}'", type), config.path,
                                 (nearest ? fmt::format("did you mean '{}'? ", *nearest) : "") +
                                     fmt::format("supported model types: {}", fmt::join(known, ", "))});
}

}  // namespace tessera::models

// The models that can be trained, by the "model_type" of config.json. To add one: a file that derives a Model
// and its Network (model.h), and a line in models.cpp; in a program of one's own, a call before anything else:
//
//   models::add_model("toy", "a model of one matrix", toy_model());
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/models/model.h"

namespace tessera::models {

OpenRegistry<ModelType>& models();

// BERT where config.json does not say.
std::string model_type_of(const ModelConfig& config);

// ErrorKind::kData, with the nearest of those known, for a type that is not in the table.
const ModelType& find_model_type(const ModelConfig& config);

ModelType bert_model_type(const std::string& model_type);   // bert.cpp, of one of its family
ModelType gemma3_model_type();                              // gemma3.cpp
ModelType gpt2_model_type();                                // gpt2.cpp
ModelType llama_model_type(const std::string& model_type);  // llama.cpp, of one of its family
ModelType t5_model_type();                                  // t5.cpp

}  // namespace tessera::models

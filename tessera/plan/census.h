// The census of a Hugging Face folder (models/census.h says what one is): how many parameters a model has, where they
// lie, and what it keeps for backward, without making it. Start at read_census.
//
// From config.json: a model of the table (models/models.h) is counted by its own declaration. Any other from the
// headers of its safetensors files, names and shapes alone, and then nothing is known of its activations. Safe to call
// from any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/census.h"

namespace tessera::plan {

using models::Architecture;
using models::ModelCensus;
using models::UnitCensus;

// Ranks that share one model; all others are data parallel.
struct Sharing {
  int64_t tensor = 1, context = 1, pipeline = 1;

  int64_t ranks() const { return tensor * context * pipeline; }
};

struct CensusOptions {
  int64_t adapter_rank = 0;  // of an adapter beside every linear layer, which alone is trained; 0: the model itself
  bool nf4 = false;          // the weights beside it are kept as NF4
  Sharing sharing = {};      // over so many ranks: the part of the one that has most
};

// ErrorKind::kData where the folder, or both config.json and weights, are missing, a size makes no sense, or a model
// that is not of the table is to have an adapter; ErrorKind::kConfig where it cannot be shared this way.
ModelCensus read_census(const std::string& folder, const CensusOptions& options = {});

// Of a parsed config.json; nothing where its model_type is not known. `where` is shown in errors.
std::optional<ModelCensus> census_of_config(const nlohmann::json& config, const std::string& where,
                                            const CensusOptions& options = {});

// The model_types that it knows, for messages.
std::vector<std::string> known_model_types();

}  // namespace tessera::plan

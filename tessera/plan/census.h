// How many parameters a model has, where they lie, and what it keeps for backward: what an estimate needs to know of a
// model, without making it. Start at read_census (a Hugging Face folder).
//
// From config.json where its model_type has a formula (census_formulas.cpp: bert, gpt2, llama, mistral, t5, each the
// class with the language-model head, as transformers counts it); of another model from the headers of its safetensors
// files, names and shapes alone, and then nothing is known of its activations.
//
// A unit is what stage 3 gathers at once: the embeddings, each block, the head. Counts are elements. Values; safe to
// read from any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::plan {

struct UnitCensus {
  std::string name;
  int64_t numel = 0;           // of its own parameters
  int64_t largest_tensor = 0;  // among them
};

// What decides the activations of a transformer.
struct Architecture {
  std::string model_type;
  int64_t layers = 0;  // of encoder and decoder together
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t max_positions = 0;  // 0: no limit of its own
  bool gated_ffn = false;     // gate, up and down instead of two matrices
  double hidden_dropout = 0;
  double attention_dropout = 0;
};

struct ModelCensus {
  std::string source;  // "BertForMaskedLM, from models/bert/config.json"
  int64_t params = 0;  // shared ones counted once
  // Of the module that itself holds most, shared ones included: DeepSpeed's "largest layer", max over modules of
  // sum(p.numel() for p in module.parameters(recurse=False)).
  int64_t largest_layer = 0;
  std::vector<UnitCensus> units;  // in the order of the forward pass
  bool head_shares_embeddings = false;
  std::optional<Architecture> architecture;  // none: only names and shapes are known

  const UnitCensus& largest_block() const;  // the unit with most parameters besides the first and the last, if any
};

// ErrorKind::kData where the folder, or both config.json and weights, are missing, or a size makes no sense.
ModelCensus read_census(const std::string& folder);

// Of a parsed config.json; nothing where its model_type has no formula. `where` is shown in errors.
std::optional<ModelCensus> census_of_config(const nlohmann::json& config, const std::string& where);

// The model_types with a formula, for messages.
std::vector<std::string> known_model_types();

}  // namespace tessera::plan

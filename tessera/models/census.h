// How many parameters a model has, where they lie, and what decides the activations that it keeps for backward: what an
// estimate of memory needs to know of a model, without a byte of it. plan/census.h has those of Hugging Face folders.
//
// A unit is what stage 3 gathers at once: usually the embeddings, each block, the head. Counts are elements. Values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/model.h"

namespace tessera::models {

struct UnitCensus {
  std::string name;
  int64_t numel = 0;           // of its own parameters
  int64_t largest_tensor = 0;  // among them
  int64_t frozen = 0;          // of numel, those that are not trained
  int64_t quantized = 0;       // of those, the ones that are kept as NF4 (nn/nf4_product.h) …
  int64_t quantized_bytes = 0;
  int64_t largest_quantized = 0;  // … and the most of them in one tensor
  int64_t experts = 0;            // of numel: of experts of which other ranks have other ones …
  int64_t expert_ranks = 1;       // … that many, over which these are not sharded

  int64_t trained() const { return numel - frozen; }
  int64_t trained_shard(int64_t ranks) const;            // … of one of so many shards
  int64_t bytes(int64_t each, int64_t ranks = 1) const;  // of one of so many shards, with so many bytes a weight
  int64_t held() const { return numel - quantized + quantized_bytes; }  // as the engine counts: a byte is an element
};

struct ModelCensus {
  std::string source;                          // "BertForMaskedLM, from models/bert/config.json"
  int64_t params = 0;                          // shared ones counted once
  int64_t frozen = 0;                          // of those, not trained
  int64_t quantized = 0, quantized_bytes = 0;  // as of a unit
  int64_t experts = 0, expert_ranks = 1;       // …
  // Of the module that itself holds most, shared ones included: DeepSpeed's "largest layer", max over modules of
  // sum(p.numel() for p in module.parameters(recurse=False)).
  int64_t largest_layer = 0;
  std::vector<UnitCensus> units;  // in the order of the forward pass; what belongs to no module's comes first
  size_t embeddings = 0;          // which of them begins the pass
  bool head_shares_embeddings = false;
  std::optional<Architecture> architecture;  // none: only names and shapes are known

  int64_t trained() const { return params - frozen; }
  int64_t trained_shard(int64_t ranks) const;
  int64_t bytes(int64_t each, int64_t ranks = 1) const;
  const UnitCensus& largest_block() const;  // the unit with most parameters between embeddings and head, if any
};

// Of a module whose units are registered in the order of the forward pass; its parameters may be declared ones. Without
// source and architecture. `experts`: paths below which so many ranks have each their own.
ModelCensus count_parameters(torch::nn::Module& module, const std::vector<std::string>& experts = {},
                             int expert_ranks = 1);

// Over how many ranks a network is cut, and its experts shared out.
struct PartRanks {
  int tensor = 1, expert = 1;
};

// Of the model's own network and architecture, as the first of so many ranks has it. `class_name` and `where` make its
// source. ErrorKind::kConfig where it cannot be cut over so many.
ModelCensus census_of(const Model& model, const std::string& class_name, const std::string& where,
                      const PartRanks& ranks = {});

}  // namespace tessera::models

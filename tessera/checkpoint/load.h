// Loading the training state of a sharded model, at any number of ranks and any stage: each rank reads from the shard
// files the runs of elements that it owns, and checks the blocks that it reads. Only the state of single ranks (random
// numbers) needs the same number of ranks, and is left out otherwise.
//
// Collective. Errors are thrown on every rank alike: ErrorKind::kData.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::zero {
class ShardedModel;
}

namespace tessera::checkpoint {

struct LoadInput {
  std::filesystem::path folder;
  std::string tag;  // empty: what `latest` names
  zero::ShardedModel& model;
  std::vector<std::string> optimizer_states;
  std::vector<std::string> optimizer_numbers;
  LoadOptions options = {};
};

struct LoadResult {
  std::string path;
  nlohmann::json engine_state;
  nlohmann::json client_state;
  TensorMap shared_tensors;
  TensorMap rank_tensors;  // empty when saved by another number of ranks
};

// Nothing when `tag` is empty and the folder has no checkpoint. The caller publishes the parameters afterwards.
std::optional<LoadResult> load(const LoadInput& input);

}  // namespace tessera::checkpoint

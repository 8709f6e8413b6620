// Saving and loading the training state of a sharded model.
//
// Saving, step by step:
//   0) (rank 0)     makes <folder>/<tag>.saving
//   1) (all ranks)  write their slice of every tensor into a shard file there, fsynced
//   2) (all ranks)  tell each other how it went; if a rank failed, rank 0 removes the folder and every rank throws
//   3) (rank 0)     writes manifest.json, fsyncs, renames the folder to <tag>, and last replaces <folder>/latest
// So `latest` always names a whole checkpoint, whatever happens in between, and a failed save loses nothing.
//
// Loading works at any number of ranks and any stage: each rank reads from the shard files the runs of elements that it
// owns. Only the state of single ranks (random numbers) needs the same number of ranks, and is left out otherwise.
//
// Collective. Errors are thrown on every rank alike: ErrorKind::kMachine while saving, kData while loading.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/zero/sharded_model.h"

namespace tessera::checkpoint {

struct SaveInput {
  std::filesystem::path folder;
  std::string tag;
  const zero::ShardedModel& model;
  std::vector<std::string> optimizer_states;   // names of each unit's optimizer_state(), in order
  std::vector<std::string> optimizer_numbers;  // names of each parameter's numbers(), in order
  nlohmann::json engine_state;
  nlohmann::json client_state;
  std::map<std::string, at::Tensor> rank_tensors;  // this rank's own
};

// Returns <folder>/<tag>.
std::string save(const SaveInput& input);

struct LoadInput {
  std::filesystem::path folder;
  std::string tag;  // empty: what `latest` names
  zero::ShardedModel& model;
  std::vector<std::string> optimizer_states;
  std::vector<std::string> optimizer_numbers;
};

struct LoadResult {
  std::string path;
  nlohmann::json engine_state;
  nlohmann::json client_state;
  std::map<std::string, at::Tensor> rank_tensors;  // empty when saved by another number of ranks
};

// Nothing when `tag` is empty and there is no `latest`. The caller publishes the parameters afterwards.
std::optional<LoadResult> load(const LoadInput& input);

}  // namespace tessera::checkpoint

// Saving and loading the training state of a sharded model.
//
// Saving, step by step:
//   0) (rank 0)     makes <folder>/<tag>.saving
//   1) (all ranks)  write their shard of every tensor into a shard file there, checksummed and fsynced
//   2) (all ranks)  tell each other how it went; if a rank failed, rank 0 removes the folder and every rank fails
//   3) (rank 0)     writes manifest.json, fsyncs, renames the folder to <tag>, and last replaces <folder>/latest
// So `latest` always names a whole checkpoint, whatever happens in between, and a failed save loses nothing. In the
// background all of this happens on another thread; save() only copies the shards into buffers that are used again.
//
// Loading works at any number of ranks and any stage: each rank reads from the shard files the runs of elements that it
// owns, and checks the blocks that it reads. Only the state of single ranks (random numbers) needs the same number of
// ranks, and is left out otherwise.
//
// Collective. Errors are thrown on every rank alike: ErrorKind::kMachine while saving, kData while loading.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/retention.h"
#include "tessera/storage/aligned_buffer.h"
#include "tessera/zero/sharded_model.h"

namespace tessera::checkpoint {

struct ShardPlan;

enum class TagValidation { kIgnore, kWarn, kFail };  // when ranks name different tags

struct SaveOptions {
  bool in_background = false;    // return once the state is copied; not where host memory is too short for a copy
  bool trainable_only = false;   // leave frozen parameters out
  bool optimizer_states = true;  // false: the weights alone
  bool sets_latest = true;       // false: `latest` goes on naming the one before
  bool node_local = false;       // each host writes to its own disk: its first rank makes the folder there
  TagValidation tag_validation = TagValidation::kWarn;
  Retention retention = {};
};

struct SaveInput {
  std::filesystem::path folder;
  std::string tag;
  const zero::ShardedModel& model;
  std::vector<std::string> optimizer_states;   // names of each unit's optimizer_state(), in order
  std::vector<std::string> optimizer_numbers;  // names of each parameter's numbers(), in order
  nlohmann::json engine_state;
  nlohmann::json client_state;
  std::map<std::string, at::Tensor> rank_tensors;  // this rank's own
  SaveOptions options = {};
};

// A save in the background failed. Everything else is fine: training can go on.
class SaveFailed : public Error {
 public:
  using Error::Error;
};

// One per model. Its methods are called by the training thread.
class Saver {
 public:
  // `world` outlives the saver.
  explicit Saver(comm::Group& world);
  // Waits for a save in progress; gives it up instead while an exception unwinds the stack.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Collective. Waits for the save before this one; returns <folder>/<tag>.
  std::string save(const SaveInput& input);

  // Throws SaveFailed, once, if a save in the background has failed.
  void throw_failure();

  // Waits until nothing is being saved; throws like throw_failure().
  void finish();

 private:
  struct Job;
  void run(Job& job);
  bool image_fits(const ShardPlan& plan);

  comm::Group& world_;
  std::shared_ptr<comm::Group> line_;  // the background's, once there was one
  storage::AlignedBuffer image_;       // of the shard file that is being written
  std::unique_ptr<Job> job_;
  std::thread thread_;
  bool said_sizes_ = false;
  bool said_memory_ = false;
};

struct LoadOptions {
  bool strict = true;            // false: names that the model or the checkpoint lacks are skipped
  bool optimizer_states = true;  // false: the optimizer starts afresh
  bool schedule = true;          // false: the schedule starts afresh
  bool weights_only = false;     // neither optimizer, schedule, counts, loss scale nor random numbers
  bool fall_back = false;        // a damaged checkpoint: take the newest intact one in the folder
  // (old, new) beginnings of names: a parameter "new…" of the model takes what is stored as "old…".
  std::vector<std::pair<std::string, std::string>> renames = {};
};

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
  std::map<std::string, at::Tensor> rank_tensors;  // empty when saved by another number of ranks
};

// Nothing when `tag` is empty and the folder has no checkpoint. The caller publishes the parameters afterwards.
std::optional<LoadResult> load(const LoadInput& input);

}  // namespace tessera::checkpoint

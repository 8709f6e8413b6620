// Saving the training state of a sharded model, step by step:
//   0) (rank 0)     takes the folder's lock, which it keeps until it saves elsewhere; makes <folder>/<tag>.saving
//   1) (all ranks)  write their shard of every tensor into a shard file there, checksummed and fsynced
//   2) (all ranks)  tell each other how it went; if a rank failed, rank 0 removes the folder and every rank fails
//   3) (rank 0)     writes manifest.json, fsyncs, renames the folder to <tag>, and last replaces <folder>/latest
// So `latest` always names a whole checkpoint, whatever happens in between, and a failed save loses nothing. In the
// background all of this happens on another thread; save() only copies the shards into buffers that are used again.
//
// Collective. Errors are thrown on every rank alike: ErrorKind::kMachine.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/storage/aligned_buffer.h"
#include "tessera/storage/folder_lock.h"

namespace tessera::comm {
class Group;
}
namespace tessera::zero {
class ShardedModel;
}

namespace tessera::checkpoint {

struct ShardPlan;

struct SaveInput {
  std::filesystem::path folder;
  std::string tag;
  const zero::ShardedModel& model;
  std::vector<std::string> optimizer_states;   // names of each unit's optimizer_state(), in order
  std::vector<std::string> optimizer_numbers;  // names of each parameter's numbers(), in order
  nlohmann::json engine_state;
  nlohmann::json client_state;
  TensorMap shared_tensors;  // beside client_state, and as that taken from the rank that leads
  TensorMap rank_tensors;    // this rank's own
  SaveOptions options = {};
};

// Whether this rank makes and publishes the folder.
bool leads(const SaveInput& input);

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
  std::unique_ptr<storage::FolderLock> lock_;  // of the folder that was saved to last, where this rank leads
  bool said_sizes_ = false;
  bool said_memory_ = false;
};

}  // namespace tessera::checkpoint

// An engine's checkpoints: the model's training state, how far the run is, and what is each rank's own.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tessera/checkpoint/saver.h"
#include "tessera/engine/options.h"
#include "tessera/engine/training_state.h"

namespace tessera::engine {

class Checkpointing {
 public:
  // All are borrowed.
  Checkpointing(zero::ShardedModel& model, const optim::Optimizer& optimizer, TrainingState& state);

  // As the configuration's block `checkpoint` says.
  static checkpoint::SaveOptions options_of(const config::DsConfig& config);

  // Returns the checkpoint's folder. No update is under way. Collective.
  std::string save(const std::string& folder, const std::string& tag, const nlohmann::json& client_state,
                   const checkpoint::SaveOptions& options, const checkpoint::ClientTensors& tensors);

  // Nothing is being saved, and no update under way. Collective.
  std::optional<LoadedCheckpoint> load(const std::string& folder, const std::string& tag,
                                       const checkpoint::LoadOptions& options);

  checkpoint::Saver& saver() { return saver_; }

 private:
  void load_random_state(const checkpoint::TensorMap& rank_tensors, bool says_if_missing);

  zero::ShardedModel& model_;
  const optim::Optimizer& optimizer_;
  TrainingState& state_;
  checkpoint::Saver saver_;
};

}  // namespace tessera::engine

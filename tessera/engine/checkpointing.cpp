#include "tessera/engine/checkpointing.h"

#include <fmt/format.h>

#include "tessera/base/log.h"
#include "tessera/checkpoint/load.h"
#include "tessera/engine/random_state.h"
#include "tessera/zero/rank_state.h"
#include "tessera/zero/sharded_model.h"
#include "tessera/zero/sharded_step.h"

namespace tessera::engine {
namespace {

// Names of a rank's own tensors in a checkpoint; those that the engine's user gave follow the prefix.
const std::string kRandomState = "random_state";
const std::string kDeviceRandomState = "device_random_state";
const std::string kClientPrefix = "client/";

}  // namespace

Checkpointing::Checkpointing(zero::ShardedModel& model, const optim::Optimizer& optimizer, TrainingState& state)
    : model_(model), optimizer_(optimizer), state_(state), saver_(model.world()) {}

checkpoint::SaveOptions Checkpointing::options_of(const config::DsConfig& config) {
  using checkpoint::TagValidation;
  const config::Json& validation = config.value("checkpoint.tag_validation");
  return {.in_background = config.value("checkpoint.async_save") == true,
          .node_local = config.value("checkpoint.use_node_local_storage") == true,
          .tag_validation = validation == "Fail"     ? TagValidation::kFail
                            : validation == "Ignore" ? TagValidation::kIgnore
                                                     : TagValidation::kWarn};
}

std::string Checkpointing::save(const std::string& folder, const std::string& tag, const nlohmann::json& client_state,
                                const checkpoint::SaveOptions& options, const checkpoint::ClientTensors& tensors) {
  checkpoint::TensorMap own = zero::rank_state(model_, optimizer_);
  own[kRandomState] = random_state();
  if (!model_.device().is_cpu()) own[kDeviceRandomState] = random_state(model_.device());
  for (const auto& [name, tensor] : tensors.of_rank) own[kClientPrefix + name] = tensor;
  return saver_.save({.folder = folder,
                      .tag = tag.empty() ? fmt::format("global_step{}", state_.global_steps()) : tag,
                      .model = model_,
                      .optimizer_states = optimizer_.state_names(),
                      .optimizer_numbers = optimizer_.number_names(),
                      .engine_state = state_.save(),
                      .client_state = client_state,
                      .shared_tensors = tensors.shared,
                      .rank_tensors = std::move(own),
                      .options = options});
}

std::optional<LoadedCheckpoint> Checkpointing::load(const std::string& folder, const std::string& tag,
                                                    const checkpoint::LoadOptions& options) {
  const auto loaded = checkpoint::load({.folder = folder,
                                        .tag = tag,
                                        .model = model_,
                                        .optimizer_states = optimizer_.state_names(),
                                        .optimizer_numbers = optimizer_.number_names(),
                                        .options = options});
  if (!loaded) return std::nullopt;
  if (options.optimizer_states && !options.weights_only) {
    zero::restore_rank_state(model_, optimizer_, loaded->rank_tensors);
  }
  if (options.rounds_weights) zero::round_master_weights(model_);
  zero::publish_parameters(model_);
  LoadedCheckpoint result{loaded->path, loaded->client_state, {.shared = loaded->shared_tensors}};
  if (options.weights_only) return result;
  for (const auto& [name, tensor] : loaded->rank_tensors) {
    if (name.starts_with(kClientPrefix)) result.tensors.of_rank[name.substr(kClientPrefix.size())] = tensor;
  }
  load_random_state(loaded->rank_tensors, options.optimizer_states);
  state_.load(loaded->engine_state, options.schedule);
  return result;
}

void Checkpointing::load_random_state(const checkpoint::TensorMap& rank_tensors, bool says_if_missing) {
  const auto random = rank_tensors.find(kRandomState);
  if (random == rank_tensors.end()) {
    if (says_if_missing && model_.world().rank() == 0) {
      log_info("the checkpoint was made by a different number of ranks: random numbers (dropout) start from the seed");
    }
    return;
  }
  set_random_state(random->second);
  const auto of_device = rank_tensors.find(kDeviceRandomState);
  if (!model_.device().is_cpu() && of_device != rank_tensors.end()) {
    set_random_state(of_device->second, model_.device());
  }
}

}  // namespace tessera::engine

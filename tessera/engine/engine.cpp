#include "tessera/engine/engine.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera {

config::DsConfig load_config_for(const std::string& path, const InitializeOptions& options) {
  const int world = options.world ? options.world->size() : 1;
  return config::load_ds_config(path, {.data_parallel_size = options.mesh ? options.mesh->shape().replicas() : world});
}

ModuleEngine::ModuleEngine(std::shared_ptr<torch::nn::Module> model, const config::DsConfig& config,
                           const InitializeOptions& options)
    : Engine(engine::tree_of(*model).tree, config, options),
      model_(std::move(model)),
      announcing_(engine::tree_of(*model_).announcing) {
  for (size_t number = 0; number < announcing_.size(); ++number) {
    if (announcing_[number] != nullptr) announcing_[number]->set_observer(this, number);
  }
  for (const auto& item : model_->named_parameters()) names_.insert(item.key());
  logs_steps_ = true;
}

void ModuleEngine::require_known_parameters() {
  if (!model_->is_training() || micro_steps() < next_check_) return;
  next_check_ = micro_steps() + config().batch.accumulation;
  for (const auto& item : model_->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    const auto place = sharded_model().place_of(item.value());
    if (!place) {
      throw Error(
          ErrorKind::kUsage,
          {fmt::format("the parameter '{}' was {} after initialize, so no engine trains it", item.key(),
                       names_.contains(item.key()) ? "replaced" : "added"),
           "Engine::forward", "change the model before initialize; to give a parameter new values, load a checkpoint"});
    }
    const zero::Unit& unit = *sharded_model().units()[place->unit];
    if (!unit.trainable() && unit.params()[place->param].trainable()) {
      throw Error(ErrorKind::kUsage,
                  {fmt::format("the parameter '{}' was frozen when the engine was made, and requires a gradient now",
                               item.key()),
                   "Engine::forward", "set requires_grad before initialize"});
    }
  }
}

ModuleEngine::~ModuleEngine() {
  for (nn::UnitModuleBase* module : announcing_) {
    if (module != nullptr) module->set_observer(nullptr, 0);
  }
}

void ModuleEngine::before_forward(size_t module, const std::vector<at::Tensor>& inputs) {
  Engine::before_forward(module, inputs);
}

void ModuleEngine::after_forward(size_t module, const std::vector<at::Tensor>& outputs) {
  Engine::after_forward(module, outputs);
}

}  // namespace tessera

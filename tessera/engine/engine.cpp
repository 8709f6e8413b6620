#include "tessera/engine/engine.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/mesh.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/model_tree.h"
#include "tessera/zero/sharded_model.h"

namespace tessera {

Configuration::Configuration(const char* path) : Configuration(std::string(path)) {}

Configuration::Configuration(const std::string& path)
    : read_([path](int ranks) { return config::load_ds_config(path, {.data_parallel_size = ranks}); }) {}

Configuration::Configuration(const nlohmann::json& values)
    : read_([values](int ranks) {
        return config::parse_ds_config(config::Json(values), "the configuration", {.data_parallel_size = ranks});
      }) {}

Configuration::Configuration(const config::DsConfig& resolved)
    : read_([resolved](int /*ranks*/) { return resolved; }) {}

config::DsConfig Configuration::for_ranks(int data_parallel_size) const { return read_(data_parallel_size); }

struct ModuleEngine::Parts {
  std::shared_ptr<torch::nn::Module> model;
  InitializeOptions options;
  config::DsConfig config;
  engine::AnnouncedTree tree;

  Parts(std::shared_ptr<torch::nn::Module> given, const Configuration& configuration, InitializeOptions with)
      : model(engine::required_model(std::move(given))), options(std::move(with)) {
    if (!options.mesh && !options.world) options.world = comm::init_distributed();
    config = configuration.for_ranks(options.mesh ? options.mesh->shape().readers() : options.world->size());
    tree = engine::tree_of(*model);
  }
};

ModuleEngine::ModuleEngine(std::shared_ptr<torch::nn::Module> model, const Configuration& config,
                           InitializeOptions options)
    : ModuleEngine(Parts(std::move(model), config, std::move(options))) {}

ModuleEngine::ModuleEngine(Parts parts)
    : Engine(std::move(parts.tree.tree), parts.config, parts.options),
      model_(std::move(parts.model)),
      announcing_(std::move(parts.tree.announcing)) {
  for (size_t number = 0; number < announcing_.size(); ++number) {
    if (announcing_[number] != nullptr) announcing_[number]->set_observer(this, number);
  }
  for (const auto& item : model_->named_parameters()) names_.insert(item.key());
  logs_steps_ = true;
}

void ModuleEngine::require_known_parameters() {
  if (!model_->is_training() || micro_steps() < next_check_) return;
  next_check_ = micro_steps() + gradient_accumulation_steps();
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

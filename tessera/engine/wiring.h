// From a configuration to the parts that do what it says: the one place where a stage, a precision or an optimizer is
// decided.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "tessera/engine/engine.h"

namespace tessera::engine {

struct Wiring {
  std::unique_ptr<optim::Optimizer> optimizer;  // null: the configuration names none, so nothing is trained
  std::unique_ptr<optim::Schedule> schedule;    // null: learning rates stay
  std::vector<optim::ParamGroup> groups;        // 0: with weight decay, 1: without
  std::shared_ptr<zero::ShardedModel> sharded;
  std::vector<nn::UnitModuleBase*> announcing;  // by module number; null for the root, number 0
};

Wiring wire(torch::nn::Module& model, const config::DsConfig& config, const InitializeOptions& options,
            std::shared_ptr<comm::Communicator> world);

}  // namespace tessera::engine

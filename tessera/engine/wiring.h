// From a configuration to the parts that do what it says: the one place where a stage, a precision or an optimizer is
// decided.
#pragma once

#include <memory>
#include <vector>

#include "tessera/engine/model_tree.h"
#include "tessera/engine/options.h"
#include "tessera/optim/schedule.h"

namespace tessera::engine {

struct Wiring {
  std::shared_ptr<const optim::Optimizer> optimizer;
  std::unique_ptr<optim::Schedule> schedule;  // null: learning rates stay
  std::vector<optim::ParamGroup> groups;      // see optim::param_groups
  std::shared_ptr<zero::ShardedModel> sharded;
};

Wiring wire(ModelTree tree, const config::DsConfig& config, const InitializeOptions& options,
            std::shared_ptr<comm::Mesh> mesh);

}  // namespace tessera::engine

// The optimizers that a configuration can name, and the parameter groups that come with each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/ds_config.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {

using MakeOptimizer = std::unique_ptr<Optimizer> (*)(const config::OptimizerOptions& options);

Registry<MakeOptimizer> optimizers();

// 0: with weight decay, 1: without; with Muon these are Adam's, and 2 and 3 the matrices.
std::vector<ParamGroup> param_groups(const config::OptimizerOptions& options);
size_t group_of(const config::OptimizerOptions& options, const std::string& name, size_t dimensions, bool decays);

}  // namespace tessera::optim

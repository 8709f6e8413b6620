// The optimizers that a configuration can name.
#pragma once

#include <memory>

#include "tessera/base/registry.h"
#include "tessera/config/ds_config.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {

using MakeOptimizer = std::unique_ptr<Optimizer> (*)(const config::OptimizerOptions& options);

Registry<MakeOptimizer> optimizers();

}  // namespace tessera::optim

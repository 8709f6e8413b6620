// Ranks train one model in one way. Where they do not, a collective over different parameters would wait for its
// time-out or mix them up, and different learning rates would train on without a word: so what they have is compared
// before anything else is exchanged.
#pragma once

#include <vector>

#include "tessera/comm/mesh.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/model_tree.h"
#include "tessera/optim/optimizer.h"

namespace tessera::engine {

struct RunFacts {
  const ModelTree& tree;
  const config::DsConfig& config;
  const optim::Optimizer& optimizer;
  const std::vector<optim::ParamGroup>& groups;
};

// Collective. ErrorKind::kUsage on every rank, with the first rank and the first fact that differs from rank 0's: a key
// of the configuration (but paths and the like, config::shared_lines), a hyperparameter of a group of parameters, a
// fact of the model, or a parameter's name, order, shape, dtype, unit, group, requires_grad, or whether it has values.
// What is of the model is compared among the ranks that share their parts of it.
void require_same_run(const RunFacts& run, comm::Mesh& mesh);

}  // namespace tessera::engine

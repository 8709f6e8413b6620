// The part of a model's training state that is each rank's own: what compression lost (comm/sign_compression.h), and
// weights and optimizer states while the ranks take steps apart. Everything else is the same on every rank, or its
// shards are.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "tessera/optim/optimizer.h"
#include "tessera/zero/sharded_model.h"

namespace tessera::zero {

// By name, "worker_error/<unit>"; views of the model's own tensors.
std::map<std::string, at::Tensor> rank_state(const ShardedModel& model, const optim::Optimizer& optimizer);

// Puts back what `saved` holds; errors that it does not hold begin at zero.
void restore_rank_state(ShardedModel& model, const optim::Optimizer& optimizer,
                        const std::map<std::string, at::Tensor>& saved);

}  // namespace tessera::zero

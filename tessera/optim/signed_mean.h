// What the compressed optimizers share: a mean by signs over one tensor of every shard, see optimizer.h.
#pragma once

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

// state[k] of every shard becomes its mean by signs; elements are live where state[live] is not 0.
void mean_state_by_signs(std::span<ParamShard> shards, const UpdateInput& input, size_t k, size_t live);

// The same for the gradients.
void mean_grad_by_signs(std::span<ParamShard> shards, const UpdateInput& input, size_t live);

// Takes the gradient out of elements that have no second moment: the step would divide it by eps alone.
void silence_unseen(ParamShard& shard, size_t second_moment);

}  // namespace tessera::optim

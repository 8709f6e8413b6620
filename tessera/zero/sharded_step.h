// One optimizer step over a sharded model, once backward has finished at the accumulation's boundary:
//
//   1) each rank adds up the squares of its shard of the mean gradient; the sums, and which parameters had a gradient
//      anywhere, go round. Where the step takes the ranks' own gradients, the mean is not known: the root mean square
//      of their norms stands for its norm, which is never larger.
//   2) a norm that is not finite: the step is skipped on every rank
//   3) every shard is unscaled, clipped and updated; a parameter without a gradient on any rank keeps its weights and
//      its optimizer state, as torch.optim does where grad is None
//   4) the new weights are rounded to the compute dtype and, at stages 1 and 2, sent round
#pragma once

#include <span>

#include "tessera/zero/state_update.h"

namespace tessera::zero {

// Collective.
StepResult sharded_step(ShardedModel& model, const optim::Optimizer& optimizer,
                        std::span<const optim::ParamGroup> groups, const StepInput& input);

// Before publish_parameters(): the master weights become what the compute dtype holds of them.
void round_master_weights(ShardedModel& model);

// After master weights were written from outside (a checkpoint): rounds and publishes all of them. Collective.
void publish_parameters(ShardedModel& model);

}  // namespace tessera::zero

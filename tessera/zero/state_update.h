// The two halves of an optimizer step: what the ranks agree on first, and the update of what each of them owns. See
// sharded_step.h, which is both in turn, and delayed_update.h, which lets the second wait.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/optim/optimizer.h"
#include "tessera/zero/sharded_model.h"
#include "tessera/zero/state_tiles.h"

namespace tessera::zero {

struct StepInput {
  int64_t step = 1;             // counting from 1, without skipped ones
  double max_norm = 0;          // clip the global L2 norm to this; 0: do not clip
  double loss_scale = 1;        // what the loss was multiplied by
  bool skip_nonfinite = true;   // false: a gradient that is not finite goes into the weights
  bool name_nonfinite = false;  // on a skip, find out which parameters' gradients were not finite
};

struct StepResult {
  double grad_norm = 0;                     // global L2 norm of the mean gradient, unscaled, before clipping
  bool skipped = false;                     // it was not finite
  std::vector<std::string> nonfinite = {};  // names, where asked for; the same on every rank
};

struct StepPlan {
  StepResult result;
  int64_t step = 1;
  double grad_divisor = 1;          // of the gradients: loss scale and clipping
  std::vector<char> used_anywhere;  // 0 or 1 a parameter of the trainable units, in order
};

// What Policy::refuses_unused refuses; the same on every rank, before anything has changed.
class UnusedParameters : public Error {
 public:
  using Error::Error;
};

// From the gradients that the reducer holds. Collective.
StepPlan plan_step(ShardedModel& model, const StepInput& input);

// Updates all tiles; calls `updated` once a unit's last has been. Collective where the optimizer asks its peers.
void update_state(ShardedModel& model, StateTiles& tiles, const optim::Optimizer& optimizer,
                  std::span<const optim::ParamGroup> groups, const StepPlan& plan,
                  const std::function<void(Unit&)>& updated);

}  // namespace tessera::zero

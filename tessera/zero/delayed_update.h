// One-step delayed parameter update (Ren et al. 2021, ZeRO-Offload, section 5.2): the update with a step's gradients
// runs on a thread of its own while the next step's forward and backward go on with the weights from before it, and is
// published when that next step begins. So the gradients of step t are taken at weights that have seen the updates up
// to t - 2.
//
// What the ranks agree on (the norm, clipping, whether a step is skipped) is decided at once, as without delay. It
// takes a copy of the gradients that a rank owns, and master weights beside the ones that forward uses, all in memory;
// and an elementwise optimizer, which needs nothing of other ranks. One thread at a time.
#pragma once

#include <future>
#include <span>
#include <vector>

#include "tessera/zero/state_update.h"

namespace tessera::zero {

class DelayedUpdate {
 public:
  // ErrorKind::kConfig where the model or the optimizer cannot do it. Both outlive this.
  DelayedUpdate(ShardedModel& model, const optim::Optimizer& optimizer);
  ~DelayedUpdate();  // waits for the update that is under way, and does not publish it
  DelayedUpdate(const DelayedUpdate&) = delete;
  DelayedUpdate& operator=(const DelayedUpdate&) = delete;

  // Publishes the last update and begins that of the gradients which the reducer holds. Collective.
  StepResult step(std::span<const optim::ParamGroup> groups, const StepInput& input);

  // Waits for the update that is under way, if there is one, and publishes it. Collective.
  void finish();

 private:
  void take_gradients();

  ShardedModel& model_;
  const optim::Optimizer& optimizer_;
  std::vector<at::Tensor> grads_;  // of each trainable unit's owned part
  std::future<void> running_;
};

}  // namespace tessera::zero

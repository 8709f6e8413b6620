// An optimizer step and what follows from it: the update, at once or delayed; the loss scale; what is said of it.
#pragma once

#include <memory>

#include "tessera/config/ds_config.h"
#include "tessera/engine/training_state.h"
#include "tessera/optim/optimizer.h"
#include "tessera/zero/sharded_model.h"
#include "tessera/zero/state_update.h"

namespace tessera::zero {
class DelayedUpdate;
}

namespace tessera::engine {

class Stepping {
 public:
  // All are borrowed. ErrorKind::kConfig where tessera.delayed_update does not go with the rest.
  Stepping(const config::DsConfig& config, zero::ShardedModel& model, const optim::Optimizer& optimizer,
           TrainingState& state);
  ~Stepping();

  // From the gradients that backward left; counts it and advances the loss scale, not yet the schedule. A step whose
  // gradients are not finite is skipped, on every rank; ErrorKind::kData when the loss scale has no lower value left to
  // try. `samples`: that it took, on all ranks together. Collective.
  void take(int64_t samples);

  // Waits for the update that is under way, if any, and publishes it. Collective.
  void finish_update();

  // Of the last step, with the values with which it was taken, in DeepSpeed's words, where steps_per_print says so.
  void log() const;

  double grad_norm() const { return last_.grad_norm; }  // global L2 norm before clipping; infinite or NaN when skipped
  bool was_applied() const { return taken_ && !last_.skipped; }

 private:
  zero::StepResult update(const zero::StepInput& input);
  void after_skipped_step();

  const config::DsConfig& config_;
  zero::ShardedModel& model_;
  const optim::Optimizer& optimizer_;
  TrainingState& state_;
  std::unique_ptr<zero::DelayedUpdate> delayed_;  // null: updates are not delayed
  zero::StepResult last_;
  bool taken_ = false;
};

}  // namespace tessera::engine

#include "tessera/engine/training_state.h"

#include "tessera/optim/schedule.h"

namespace tessera::engine {

TrainingState::TrainingState(const config::DsConfig& config, std::unique_ptr<optim::Schedule> schedule,
                             std::vector<optim::ParamGroup> groups)
    : schedule_(std::move(schedule)),
      initial_groups_(groups),
      groups_(std::move(groups)),
      scaler_(config.loss_scaling) {
  if (config.scheduler) first_schedule_step_ = config.scheduler->params.value("last_batch_iteration", -1) + 1;
  apply_schedule();
}

TrainingState::~TrainingState() = default;

void TrainingState::count_step(int64_t samples, bool skipped) {
  ++global_steps_;
  global_samples_ += samples;
  if (skipped) ++skipped_steps_;
}

void TrainingState::apply_schedule() {
  if (!schedule_) return;
  const int64_t n = applied_steps() - schedule_begins_after_ - 1 + first_schedule_step_;
  for (size_t index = 0; index < groups_.size(); ++index) {
    const optim::ScheduledValues values = schedule_->at(n, initial_groups_[index], index);
    groups_[index].lr = values.lr;
    if (values.beta1) groups_[index].beta1 = *values.beta1;
    if (values.beta2) groups_[index].beta2 = *values.beta2;
  }
}

nlohmann::json TrainingState::save() const {
  return {{"micro_steps", micro_steps_},
          {"global_steps", global_steps_},
          {"global_samples", global_samples_},
          {"skipped_steps", skipped_steps_},
          {"schedule_begins_after", schedule_begins_after_},
          {"loss_scaler", scaler_.state()}};
}

void TrainingState::load(const nlohmann::json& saved, bool keeps_schedule) {
  micro_steps_ = saved.at("micro_steps");
  global_steps_ = saved.at("global_steps");
  global_samples_ = saved.at("global_samples");
  skipped_steps_ = saved.at("skipped_steps");
  scaler_.set_state(saved.at("loss_scaler"));
  schedule_begins_after_ = keeps_schedule ? int64_t{saved.value("schedule_begins_after", 0)} : applied_steps();
  apply_schedule();
}

}  // namespace tessera::engine

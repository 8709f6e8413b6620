#include "tessera/engine/training_state.h"

#include "tessera/optim/running_schedule.h"

namespace tessera::engine {
namespace {

int64_t start_of(const config::DsConfig& config) {
  return config.scheduler ? config.scheduler->params.value("last_batch_iteration", int64_t{-1}) : -1;
}

}  // namespace

TrainingState::TrainingState(const config::DsConfig& config, std::unique_ptr<optim::Schedule> schedule,
                             std::vector<optim::ParamGroup> groups)
    : groups_(std::move(groups)),
      schedule_(std::make_shared<optim::RunningSchedule>(std::move(schedule), groups_, start_of(config))),
      scaler_(config.loss_scaling) {
  apply_schedule();
}

TrainingState::~TrainingState() = default;

void TrainingState::count_step(int64_t samples, bool skipped) {
  ++global_steps_;
  global_samples_ += samples;
  if (skipped) {
    ++skipped_steps_;
  } else if (!program_advances_) {
    schedule_->set_n(schedule_->n() + 1);
  }
}

void TrainingState::apply_schedule() {
  if (!program_advances_) schedule_->write(groups_);
}

void TrainingState::set_schedule(std::shared_ptr<optim::RunningSchedule> schedule) {
  schedule_ = std::move(schedule);
  program_advances_ = true;
}

nlohmann::json TrainingState::save() const {
  return {
      {"micro_steps", micro_steps_},     {"global_steps", global_steps_},          {"global_samples", global_samples_},
      {"skipped_steps", skipped_steps_}, {"last_batch_iteration", schedule_->n()}, {"loss_scaler", scaler_.state()}};
}

void TrainingState::load(const nlohmann::json& saved, bool keeps_schedule) {
  micro_steps_ = saved.at("micro_steps");
  accumulations_begin_ = micro_steps_;
  global_steps_ = saved.at("global_steps");
  global_samples_ = saved.at("global_samples");
  skipped_steps_ = saved.at("skipped_steps");
  scaler_.set_state(saved.at("loss_scaler"));
  if (keeps_schedule) {
    // Checkpoints of earlier versions say after how many applied steps the schedule began.
    const int64_t of_old = applied_steps() - saved.value("schedule_begins_after", int64_t{0}) + schedule_->start();
    schedule_->set_n(saved.value("last_batch_iteration", of_old));
  } else if (!program_advances_) {
    schedule_->set_n(schedule_->start());
  }
  apply_schedule();
}

}  // namespace tessera::engine

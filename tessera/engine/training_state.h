// What a run knows of itself between steps: how far it is, its learning rates and its loss scale. Each has one owner,
// this one; here it advances, is saved and loaded, and from here every door shows it.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "tessera/config/ds_config.h"
#include "tessera/optim/loss_scaler.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {
class RunningSchedule;
class Schedule;
}  // namespace tessera::optim

namespace tessera::engine {

class TrainingState {
 public:
  // `schedule` null: learning rates stay as `groups` have them.
  TrainingState(const config::DsConfig& config, std::unique_ptr<optim::Schedule> schedule,
                std::vector<optim::ParamGroup> groups);
  ~TrainingState();

  int64_t micro_steps() const { return micro_steps_; }
  int64_t global_steps() const { return global_steps_; }
  int64_t global_samples() const { return global_samples_; }
  int64_t skipped_steps() const { return skipped_steps_; }
  int64_t applied_steps() const { return global_steps_ - skipped_steps_; }
  void count_micro_step() { ++micro_steps_; }

  // Micro steps since an accumulation of so many began. One begins where a state is loaded, whatever the length was
  // before, and where the length changes between two.
  int64_t accumulated(int64_t length) const { return (micro_steps_ - accumulations_begin_) % length; }
  void change_accumulation(int64_t from) { accumulations_begin_ = micro_steps_ - accumulated(from); }

  void count_step(int64_t samples, bool skipped);

  // The hyperparameters of the next step. A schedule, which advances with each step that was applied, overwrites
  // learning rates, and betas where it has such.
  std::vector<optim::ParamGroup>& groups() { return groups_; }
  const std::vector<optim::ParamGroup>& groups() const { return groups_; }
  void apply_schedule();

  // A program's own in place of the configuration's: saved and loaded here, but the program advances it and writes its
  // values into the groups.
  void set_schedule(std::shared_ptr<optim::RunningSchedule> schedule);

  optim::LossScaler& scaler() { return scaler_; }
  const optim::LossScaler& scaler() const { return scaler_; }

  nlohmann::json save() const;
  // `keeps_schedule` false: it begins anew with the next step; a program's stays where it is.
  void load(const nlohmann::json& saved, bool keeps_schedule);

 private:
  std::vector<optim::ParamGroup> groups_;
  std::shared_ptr<optim::RunningSchedule> schedule_;  // counts steps also where the rates stay
  bool program_advances_ = false;
  optim::LossScaler scaler_;
  int64_t micro_steps_ = 0;
  int64_t accumulations_begin_ = 0;  // after so many of them
  int64_t global_steps_ = 0;
  int64_t global_samples_ = 0;
  int64_t skipped_steps_ = 0;
};

}  // namespace tessera::engine

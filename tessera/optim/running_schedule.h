// A schedule and how far it is. Every door runs this one: `tessera train` and C++ programs through
// engine/training_state.h, Python's classes through its binding; so a checkpoint holds one number, whoever saved it,
// and whoever loads it goes on with the same rates.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/optim/optimizer.h"
#include "tessera/optim/schedule.h"

namespace tessera::optim {

class RunningSchedule {
 public:
  // `formula` null: hyperparameters stay as they are. `groups`: with their values before any schedule. `start`: the n
  // (see schedule.h) at which it begins; -1 is before the first step.
  RunningSchedule(std::shared_ptr<const Schedule> formula, std::vector<ParamGroup> groups, int64_t start = -1);

  int64_t start() const { return start_; }
  int64_t n() const { return n_; }
  void set_n(int64_t n) { n_ = n; }

  // Of the next step, and the formula's terms. Need a formula.
  ScheduledValues values(size_t group) const;
  config::Json terms(size_t group) const;

  // The same into the groups: learning rates, and betas where the formula has such.
  void write(std::vector<ParamGroup>& groups) const;

 private:
  std::shared_ptr<const Schedule> formula_;
  std::vector<ParamGroup> groups_;
  int64_t start_;
  int64_t n_;
};

}  // namespace tessera::optim

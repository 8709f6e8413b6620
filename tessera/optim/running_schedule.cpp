#include "tessera/optim/running_schedule.h"

#include "tessera/base/error.h"

namespace tessera::optim {

RunningSchedule::RunningSchedule(std::shared_ptr<const Schedule> formula, std::vector<ParamGroup> groups, int64_t start)
    : formula_(std::move(formula)), groups_(std::move(groups)), start_(start), n_(start) {}

ScheduledValues RunningSchedule::values(size_t group) const {
  TESSERA_INVARIANT(formula_ != nullptr);
  return formula_->at(n_, groups_.at(group), group);
}

config::Json RunningSchedule::terms(size_t group) const {
  TESSERA_INVARIANT(formula_ != nullptr);
  return formula_->terms(groups_.at(group), group);
}

void RunningSchedule::write(std::vector<ParamGroup>& groups) const {
  if (!formula_) return;
  for (size_t index = 0; index < groups.size(); ++index) {
    const ScheduledValues now = values(index);
    groups[index].lr = now.lr;
    if (now.beta1) groups[index].beta1 = *now.beta1;
    if (now.beta2) groups[index].beta2 = *now.beta2;
  }
}

}  // namespace tessera::optim

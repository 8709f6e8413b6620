// The schedules that there are, by name (schedule.h).
#pragma once

#include <string>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/pipeline/schedule.h"

namespace tessera::pipeline {

struct ScheduleKind {
  int stages_per_rank = 1;  // 0: any number from 2 on, 2 where nothing is said

  // Whether a rank's second stage lies next to its first in reverse, so that rank 0 has the model's first and last.
  bool folds_back = false;
  bool splits_backward = false;  // into kBackwardInput and kBackwardWeights

  // Most micro batches that a rank has begun and not ended with kBackward or kBackwardWeights, counted for each of its
  // stages: what it must keep activations of.
  int (*most_kept)(int rank, const ScheduleSize& size) = nullptr;
  std::vector<std::vector<Action>> (*actions)(const ScheduleSize& size) = nullptr;

  // Whether such a size can be; else why not, for people.
  std::string (*why_not)(const ScheduleSize& size) = nullptr;
};

Registry<ScheduleKind> schedules();

}  // namespace tessera::pipeline

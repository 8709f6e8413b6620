// The loss on what is held out from training.
#pragma once

#include <cstdint>
#include <functional>

#include "tessera/train/task.h"

namespace tessera::train {

// What a step or an evaluation saw, all ranks together.
struct LossSum {
  double loss = 0;  // sum over targets
  int64_t targets = 0;
  int64_t tokens = 0;

  double mean() const { return targets == 0 ? 0 : loss / static_cast<double>(targets); }
};

// Adds up over ranks, in rank order. Collective.
LossSum sum_over_ranks(comm::Group& world, const LossSum& mine);

struct EvaluationOptions {
  int64_t micro_batch = 1;
  int64_t most_samples = 0;  // spread evenly over what is held out, the same ones each time; 0: all
  std::function<void(int64_t done, int64_t all)> progress = nullptr;  // after each forward; in samples of all ranks
};

// The loss without dropout: the same however many ranks share it. Collective.
LossSum evaluate(ModuleEngine& engine, Task& task, const EvaluationOptions& options);

// How many samples that looks at.
int64_t evaluated_samples(const Task& task, int world_size, int64_t most_samples);

}  // namespace tessera::train

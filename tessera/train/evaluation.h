// The loss on what is held out from training.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/train/task.h"

namespace tessera::train {

// Adds up over ranks, in rank order. Every rank has as many tallies. Collective.
LossSum sum_over_ranks(comm::Group& world, const LossSum& mine);

struct EvaluationOptions {
  int64_t micro_batch = 1;
  int64_t most_samples = 0;  // spread evenly over what is held out, the same ones each time; 0: all
  std::function<void(int64_t done, int64_t all)> progress = nullptr;  // after each forward; in samples of all ranks
};

// The loss, and the tallies of the task's metrics, without dropout: the same however many ranks share it. Collective.
LossSum evaluate(ModuleEngine& engine, Task& task, const EvaluationOptions& options);

// The loss, and what the task reports beside it, under their names in metrics.jsonl: "eval_loss", "eval_accuracy", …
std::vector<Metric> all_metrics(const std::vector<Metric>& of_task);

// ErrorKind::kConfig, with the nearest of those there are.
const Metric& find_metric(const std::vector<Metric>& all, const std::string& name, const std::string& where);

// How many samples that looks at.
int64_t evaluated_samples(const Task& task, int world_size, int64_t most_samples);

}  // namespace tessera::train

#include "tessera/train/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>
#include <vector>

#include "tessera/config/ds_config.h"

namespace tessera::train {

data::LoaderOptions loader_options(Engine& engine, uint64_t seed) {
  const config::DsConfig& config = engine.config();
  return {.micro_batch = config.batch.micro,
          .accumulation = config.batch.accumulation,
          .world_size = engine.data_group().size(),
          .rank = engine.data_group().rank(),
          .seed = seed,
          .drop_last = config.dataloader_drop_last};
}

LossSum sum_over_ranks(comm::Group& world, const LossSum& mine) {
  at::Tensor own = at::empty({3}, at::kDouble);
  auto* const values = own.mutable_data_ptr<double>();
  values[0] = mine.loss;
  values[1] = static_cast<double>(mine.targets);
  values[2] = static_cast<double>(mine.tokens);
  world.start_all_reduce(own, 1, "loss").finish();
  return {values[0], static_cast<int64_t>(values[1]), static_cast<int64_t>(values[2])};
}

// At least one for each rank, because at stage 3 every rank runs as many forwards.
int64_t evaluated_samples(const Task& task, int world_size, int64_t most_samples) {
  const auto all = static_cast<int64_t>(task.eval_samples());
  return most_samples == 0 ? all : std::min(all, std::max<int64_t>(most_samples, world_size));
}

LossSum evaluate(ModuleEngine& engine, Task& task, const EvaluationOptions& options) {
  const at::NoGradGuard no_grad;
  comm::Group& group = engine.data_group();
  const int64_t all = evaluated_samples(task, group.size(), options.most_samples);
  const auto held_out = static_cast<int64_t>(task.eval_samples());
  std::vector<size_t> own;
  for (int64_t i = group.rank(); i < all; i += group.size()) own.push_back(static_cast<size_t>(i * held_out / all));
  // Stage 3 gathers in each forward, so every rank runs as many: one that has no samples left runs some again,
  // uncounted.
  const int64_t per_rank = (all + group.size() - 1) / group.size();
  LossSum sum;
  engine.eval();
  for (int64_t first = 0; first < per_rank; first += options.micro_batch) {
    const auto count = static_cast<int64_t>(own.size());
    const bool counted = first < count;
    const std::span<const size_t> samples =
        counted ? std::span(own).subspan(first, std::min(options.micro_batch, count - first)) : std::span(own).first(1);
    const BatchLoss batch = task.eval_loss(samples);
    const double loss = batch.sum.item<double>();
    if (options.progress) options.progress(std::min((first + options.micro_batch) * group.size(), all), all);
    if (!counted) continue;
    sum.loss += loss;
    sum.targets += batch.targets;
    sum.tokens += batch.tokens;
  }
  engine.train();
  return sum_over_ranks(group, sum);
}

}  // namespace tessera::train

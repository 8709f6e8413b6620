#include "tessera/train/evaluation.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "tessera/base/suggest.h"
#include "tessera/config/ds_config.h"
#include "tessera/engine/pipeline_run.h"

namespace tessera::train {

data::LoaderOptions loader_options(Engine& engine, uint64_t seed) {
  const config::DsConfig& config = engine.config();
  return {.micro_batch = config.batch.micro,
          .accumulation = config.batch.accumulation,
          .world_size = engine.batch_group().size(),
          .rank = engine.batch_group().rank(),
          .seed = seed,
          .drop_last = config.dataloader_drop_last};
}

Metric perplexity() {
  return {.name = "perplexity", .larger_is_better = false, .value = [](const LossSum& seen) {
            return std::exp(seen.mean());
          }};
}

LossSum sum_over_ranks(comm::Group& world, const LossSum& mine) {
  at::Tensor own = at::empty({3 + static_cast<int64_t>(mine.tallies.size())}, at::kDouble);
  auto* const values = own.mutable_data_ptr<double>();
  values[0] = mine.loss;
  values[1] = static_cast<double>(mine.targets);
  values[2] = static_cast<double>(mine.tokens);
  std::copy(mine.tallies.begin(), mine.tallies.end(), values + 3);
  world.start_all_reduce(own, 1, "loss").finish();
  return {.loss = values[0],
          .targets = static_cast<int64_t>(values[1]),
          .tokens = static_cast<int64_t>(values[2]),
          .tallies = {values + 3, values + own.numel()}};
}

std::vector<Metric> all_metrics(const std::vector<Metric>& of_task) {
  std::vector<Metric> all = {
      {.name = "eval_loss", .larger_is_better = false, .value = [](const LossSum& seen) { return seen.mean(); }}};
  for (Metric metric : of_task) {
    metric.name = "eval_" + metric.name;
    all.push_back(std::move(metric));
  }
  return all;
}

const Metric& find_metric(const std::vector<Metric>& all, const std::string& name, const std::string& where) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Metric& metric) { return metric.name == name; });
  if (found != all.end()) return *found;
  std::vector<std::string> names;
  for (const Metric& metric : all) names.push_back(metric.name);
  throw_unknown_name({.kind = "metric of this task", .name = name, .where = where, .error_kind = ErrorKind::kConfig},
                     names);
}

// At least one for each rank, because at stage 3 every rank runs as many forwards.
int64_t evaluated_samples(const Task& task, int world_size, int64_t most_samples) {
  const auto all = static_cast<int64_t>(task.eval_samples());
  return most_samples == 0 ? all : std::min(all, std::max<int64_t>(most_samples, world_size));
}

// Of the ranks that counted some, all of which counted equally many.
static size_t most_tallies(comm::Group& ranks, const LossSum& sum) {
  size_t most = 0;
  for (const std::string& count : ranks.exchange_texts(std::to_string(sum.tallies.size()), "tallies")) {
    most = std::max<size_t>(most, std::stoull(count));
  }
  return most;
}

LossSum evaluate(ModuleEngine& engine, Task& task, const EvaluationOptions& options) {
  const at::NoGradGuard no_grad;
  comm::Group& readers = engine.batch_group();
  const int64_t all = evaluated_samples(task, readers.size(), options.most_samples);
  const auto held_out = static_cast<int64_t>(task.eval_samples());
  std::vector<size_t> own;
  for (int64_t i = readers.rank(); i < all; i += readers.size()) own.push_back(static_cast<size_t>(i * held_out / all));
  // Stage 3 gathers in each forward, so every rank runs as many: one that has no samples left runs some again,
  // uncounted.
  const int64_t per_rank = (all + readers.size() - 1) / readers.size();
  const auto batches = static_cast<int>((per_rank + options.micro_batch - 1) / options.micro_batch);
  const auto count = static_cast<int64_t>(own.size());
  const auto is_counted = [&](int batch) { return batch * options.micro_batch < count; };
  const auto samples_of = [&](int batch) {
    const int64_t first = batch * options.micro_batch;
    if (!is_counted(batch)) return std::span<const size_t>(own).first(1);
    return std::span<const size_t>(own).subspan(static_cast<size_t>(first),
                                                static_cast<size_t>(std::min(options.micro_batch, count - first)));
  };
  LossSum sum;
  const auto add = [&](int batch, const BatchLoss& seen) {
    const double loss = seen.sum.item<double>();
    if (options.progress) options.progress(std::min((batch + 1) * options.micro_batch * readers.size(), all), all);
    if (!is_counted(batch)) return;
    sum.loss += loss;
    sum.targets += seen.targets;
    sum.tokens += seen.tokens;
    sum.tallies.resize(seen.tallies.size());
    std::transform(seen.tallies.begin(), seen.tallies.end(), sum.tallies.begin(), sum.tallies.begin(), std::plus<>());
  };
  engine.eval();
  if (engine::PipelineRun* const pipeline = task.pipeline()) {
    pipeline->evaluate(batches, [&](const engine::StagePass& pass) {
      BatchLoss seen = task.eval_loss(samples_of(pass.micro_batch), pass);
      if (pipeline->is_last(pass.stage)) add(pass.micro_batch, seen);
      return std::move(seen.leaving);
    });
    engine.train();
    comm::Group& all_ranks = pipeline->ranks_of_losses();
    sum.tallies.resize(most_tallies(all_ranks, sum));  // those of ranks without the last stage
    return sum_over_ranks(all_ranks, sum);
  }
  for (int batch = 0; batch < batches; ++batch) add(batch, task.eval_loss(samples_of(batch), {.micro_batch = batch}));
  const std::vector<double> more = task.eval_tallies();
  sum.tallies.insert(sum.tallies.end(), more.begin(), more.end());
  engine.train();
  return sum_over_ranks(engine.data_group(), sum);
}

}  // namespace tessera::train

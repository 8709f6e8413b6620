#include "tessera/train/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/config/run_file.h"
#include "tessera/data/mixture.h"
#include "tessera/data/sampler.h"
#include "tessera/train/tasks.h"

namespace tessera::train {
namespace {

using BatchSamples = data::Samples<data::Batch>;

// Sample i is the chosen[i] of `all`: what becomes of it does not depend on which others are chosen.
BatchSamples some_of(const BatchSamples& all, std::vector<size_t> chosen) {
  const auto which = std::make_shared<const std::vector<size_t>>(std::move(chosen));
  return data::renumbered<data::Batch>(all, which->size(), [which](size_t i, int64_t) { return (*which)[i]; });
}

void mix(const config::RunFile& run, RunData& data, const Listener& to) {
  const std::vector<size_t> ends = data.training->entry_ends();
  if (ends.empty()) {
    throw Error(ErrorKind::kConfig,
                {fmt::format("'data.weights' mixes samples of several entries of data.train, which the "
                             "task {} does not tell apart",
                             run.task),
                 run.name, "leave it out"});
  }
  for (size_t entry = 0; entry < ends.size(); ++entry) {
    if (ends[entry] > (entry == 0 ? 0 : ends[entry - 1])) continue;
    throw Error(ErrorKind::kData,
                {"this entry of data.train has no sample", run.data.train[entry], "leave it and its weight out"});
  }
  const auto mixture =
      std::make_shared<const data::Mixture>(ends, run.data.weights, static_cast<uint64_t>(run.training.seed));
  data.train = data::renumbered<data::Batch>(data.train, mixture->size(),
                                             [mixture](size_t i, int64_t epoch) { return mixture->sample(i, epoch); });
  if (!to.say) return;
  std::string text;
  for (const size_t samples : mixture->samples_of_parts()) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", format_count(static_cast<int64_t>(samples)));
  }
  to.say(fmt::format("data.weights: an epoch has {}, of the entries of data.train {}",
                     count_of(static_cast<int64_t>(mixture->size()), "sample"), text));
}

// The share that is held out is drawn by the seed; both sides keep the order of the files.
void hold_out(const config::RunFile& run, int ranks, RunData& data) {
  const BatchSamples all = data.train;
  const auto count = static_cast<size_t>(std::llround(run.data.eval_share * static_cast<double>(all.size)));
  if (count < static_cast<size_t>(ranks) || all.size - count < static_cast<size_t>(ranks)) {
    throw Error(ErrorKind::kConfig,
                {fmt::format("data.eval_share, {}, holds out {} of {} samples, which is not enough for {} ranks on "
                             "either side",
                             run.data.eval_share, count, all.size, ranks),
                 run.name, "choose another share, or name held-out data with data.eval"});
  }
  std::vector<size_t> order =
      data::epoch_order({.dataset_size = all.size, .seed = static_cast<uint64_t>(run.training.seed)}, /*epoch=*/0);
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(count);
  std::sort(order.begin(), middle);
  std::sort(middle, order.end());
  data.eval_numbers.assign(order.begin(), middle);
  data.eval = some_of(all, data.eval_numbers);
  data.train = some_of(all, {middle, order.end()});
}

}  // namespace

std::vector<double> RunData::eval_tallies(NetworkEngine& engine) const {
  TaskData& from = held_out ? *held_out : *training;
  return from.eval_tallies(engine, eval_numbers);
}

RunData read_run_data(const config::RunFile& run, const data::Tokenizer& tokenizer, int ranks, const Listener& to) {
  const auto read = [&](const char* key, const std::vector<std::string>& paths) {
    std::unique_ptr<TaskData> data = task_of(run).read({run, key, paths, tokenizer, ranks});
    if (to.say) to.say(data->description());
    if (to.doubt) {
      for (const std::string& doubt : data->doubts()) to.doubt(doubt);
    }
    return data;
  };
  RunData data{.training = read("data.train", run.data.train)};
  data.train = data.training->samples();
  if (!run.data.weights.empty()) mix(run, data, to);
  if (!run.data.eval.empty()) {
    data.held_out = read("data.eval", run.data.eval);
    data.eval = data.held_out->samples();
    data.eval_numbers.resize(data.eval.size);
    std::iota(data.eval_numbers.begin(), data.eval_numbers.end(), size_t{0});
  } else if (run.data.eval_share > 0) {
    hold_out(run, ranks, data);
    if (to.say) {
      to.say(fmt::format("data.eval_share: {} of data.train are held out, {} are trained on",
                         count_of(static_cast<int64_t>(data.eval.size), "sample"),
                         format_count(static_cast<int64_t>(data.train.size))));
    }
  }
  return data;
}

}  // namespace tessera::train

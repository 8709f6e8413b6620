// What a Trainer trains: where batches come from and how one becomes a loss. For data and a model of one's own:
//
//   auto engine = tessera::initialize(model, config, {.world = world});
//   train::BatchTask<MyBatch> task({.train = {.size = texts.size(), .collate = [&](samples, epoch) { … }},
//                                   .loss = [&](const MyBatch& batch) -> train::BatchLoss {
//                                     return {.sum = engine->forward(batch.ids, batch.labels), .targets = batch.rows};
//                                   }},
//                                  train::loader_options(*engine));
//   train::Trainer(*engine, task, {.output = "out", .max_steps = 100, .resume = "auto"}).run();
//
// The loss of a step is the mean over the targets of the whole global batch, however it is split over ranks and micro
// batches. Without Samples::count_targets each sample is one target.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/data/collator.h"
#include "tessera/data/dataset.h"
#include "tessera/data/loader.h"
#include "tessera/data/tokenizer.h"
#include "tessera/engine/engine.h"
#include "tessera/models/model.h"

namespace tessera::config {
struct RunFile;
}
namespace tessera::engine {
class PipelineRun;
}
namespace tessera::models {
struct StageBounds;
}

namespace tessera::train {

// Of one forward pass on one rank.
struct BatchLoss {
  at::Tensor sum;       // scalar: the loss added up over the targets
  int64_t targets = 0;  // as Samples::count_targets counts them
  int64_t tokens = 0;   // without padding, for the rate of the progress bar; 0: not counted

  // Of an evaluation: what its metrics are made of (correct rows, matched n-grams, …), as counts that add up over
  // batches and ranks; equally many of each batch.
  std::vector<double> tallies = {};

  std::vector<at::Tensor> leaving = {};  // of a pipeline's stage before the last, instead of all that: what it hands on
};

// What a step or an evaluation saw, all ranks together.
struct LossSum {
  double loss = 0;  // sum over targets
  int64_t targets = 0;
  int64_t tokens = 0;
  std::vector<double> tallies = {};  // sums of BatchLoss::tallies

  double mean() const { return targets == 0 ? 0 : loss / static_cast<double>(targets); }
};

// A number that an evaluation reports beside its loss: "eval_accuracy" in metrics.jsonl, and what a run file's
// training.best_by can name.
struct Metric {
  std::string name;  // "accuracy"
  bool larger_is_better = true;
  std::function<double(const LossSum& seen)> value;  // of all that was held out, exact however ranks share it
};

// exp of the loss, of language models.
Metric perplexity();

// Used by one thread, all ranks in step.
class Task {
 public:
  virtual ~Task() = default;

  virtual int64_t samples() const = 0;  // in an epoch
  virtual int64_t steps_per_epoch() const = 0;
  virtual void seek(int64_t epoch, int64_t step_in_epoch) = 0;

  // Goes on to the next step, whose micro batches of this rank loss() then names.
  virtual data::StepPlace next_step() = 0;
  virtual size_t micro_batches() const = 0;

  // What has to be the same on every rank beyond samples() and steps_per_epoch(), for one line: in which order the
  // samples come, say.
  virtual std::string facts() const { return ""; }

  // Where the model's layers are spread over ranks: who runs them, borrowed. Null: they are not, and a pass is one
  // through all of them, of which StagePass names the micro batch alone.
  virtual engine::PipelineRun* pipeline() const { return nullptr; }
  virtual BatchLoss loss(const engine::StagePass& pass) = 0;

  // What is held out from training; 0: nothing.
  virtual size_t eval_samples() const = 0;
  virtual BatchLoss eval_loss(std::span<const size_t> samples, const engine::StagePass& pass) = 0;

  // Tallies of this rank of what takes more than the passes of a loss, such as texts that the model writes: they follow
  // those of eval_loss(). Equally many on all ranks. Collective; the engine is in evaluation.
  virtual std::vector<double> eval_tallies() { return {}; }

  // What an evaluation reports beside its loss, made of eval_loss()'s sums and of eval_tallies().
  virtual std::vector<Metric> metrics() const { return {}; }
};

// How a batch becomes a loss: a function of the batch, or of the batch and the pass.
template <class Batch>
class PassOfBatch {
 public:
  PassOfBatch(std::nullptr_t) {}
  template <class Function>
    requires std::is_invocable_r_v<BatchLoss, const Function&, const Batch&, const engine::StagePass&>
  PassOfBatch(Function function) : run_(std::move(function)) {}
  template <class Function>
    requires std::is_invocable_r_v<BatchLoss, const Function&, const Batch&>
  PassOfBatch(Function function)
      : run_([function = std::move(function)](const Batch& batch, const engine::StagePass&) {
          return function(batch);
        }) {}

  explicit operator bool() const { return run_ != nullptr; }
  BatchLoss operator()(const Batch& batch, const engine::StagePass& pass) const { return run_(batch, pass); }

 private:
  std::function<BatchLoss(const Batch&, const engine::StagePass&)> run_;
};

template <class Batch>
struct TaskParts {
  data::Samples<Batch> train;
  PassOfBatch<Batch> loss;                                      // runs the engine's forward
  data::Samples<Batch> eval = {};                               // held out; by default nothing
  PassOfBatch<Batch> eval_loss = nullptr;                       // of what is held out, with tallies; null: as `loss`
  std::vector<Metric> metrics = {};                             // of its tallies
  std::function<std::vector<double>()> eval_tallies = nullptr;  // Task::eval_tallies; null: none
  engine::PipelineRun* pipeline = nullptr;                      // Task::pipeline
};

template <class Batch>
class BatchTask final : public Task {
 public:
  BatchTask(TaskParts<Batch> parts, const data::LoaderOptions& options)
      : parts_(std::move(parts)), loader_(parts_.train, options), facts_(data::facts_of(options)) {}

  int64_t samples() const override { return static_cast<int64_t>(parts_.train.size); }
  int64_t steps_per_epoch() const override { return loader_.steps_per_epoch(); }
  void seek(int64_t epoch, int64_t step_in_epoch) override { loader_.seek(epoch, step_in_epoch); }
  data::StepPlace next_step() override {
    step_ = loader_.next();
    return step_;
  }
  size_t micro_batches() const override { return step_.micro_batches.size(); }
  std::string facts() const override { return facts_; }
  engine::PipelineRun* pipeline() const override { return parts_.pipeline; }
  BatchLoss loss(const engine::StagePass& pass) override {
    return parts_.loss(step_.micro_batches[static_cast<size_t>(pass.micro_batch)], pass);
  }
  size_t eval_samples() const override { return parts_.eval.size; }
  BatchLoss eval_loss(std::span<const size_t> samples, const engine::StagePass& pass) override {
    const PassOfBatch<Batch>& loss = parts_.eval_loss ? parts_.eval_loss : parts_.loss;
    return loss(parts_.eval.collate(samples, /*epoch=*/0), pass);
  }
  std::vector<double> eval_tallies() override {
    return parts_.eval_tallies ? parts_.eval_tallies() : std::vector<double>();
  }
  std::vector<Metric> metrics() const override { return parts_.metrics; }

 private:
  TaskParts<Batch> parts_;
  data::Loader<Batch> loader_;
  std::string facts_;
  data::StepBatches<Batch> step_;
};

// This rank's share of the engine's batch; `seed` orders the samples.
data::LoaderOptions loader_options(Engine& engine, uint64_t seed = 42);

// An engine over a network of the models' table.
using NetworkEngine = ModelEngine<models::Network>;

// A batch through a network: its arrays as tensors on the engine's device, Network::loss_sum of them, and the batch's
// own counts of targets and tokens.
BatchLoss batch_loss(NetworkEngine& engine, const data::Batch& batch);

// What an evaluation counts in Network::outputs of a batch: BatchLoss::tallies.
using TalliesOf = std::vector<double> (*)(const std::vector<at::Tensor>& outputs, const models::NamedTensors& batch);

// The same with tallies, where there are some; of one stage alone, where the model is spread over a pipeline: what it
// hands on, of the last one the loss.
BatchLoss batch_loss(NetworkEngine& engine, const data::Batch& batch, const models::StageBounds* stages,
                     const engine::StagePass& pass, TalliesOf tallies);

// The arrays as tensors on the engine's device; on the CPU over the batch's own memory, which outlives the forward.
models::NamedTensors tensors_of(NetworkEngine& engine, const data::Batch& batch);
models::NamedTensors tensors_of(at::Device device, const data::Batch& batch);

// What `tessera train` can train for, by the run file's `task`, is a TaskType: it stands between data and a model. It
// says which of the model's classes is trained, how files become samples and samples batches, and how a batch becomes a
// loss.

// Some files of a run, to be read.
struct DataSource {
  const config::RunFile& run;
  std::string key;                        // "data.train" or "data.eval", for messages
  const std::vector<std::string>& paths;  // what it names
  const data::Tokenizer& tokenizer;       // this and the run outlive what is read
  int ranks = 1;
};

// What was read of them.
class TaskData {
 public:
  virtual ~TaskData() = default;

  virtual data::Samples<data::Batch> samples() const = 0;  // which borrow this

  // How many samples there are up to the end of each entry of data.train, for data.weights. Empty: not known, and
  // data.weights is refused.
  virtual std::vector<size_t> entry_ends() const { return {}; }

  virtual std::string description() const = 0;          // one line for the user
  virtual std::vector<std::string> doubts() const = 0;  // what is probably not meant, a line each

  // Task::eval_tallies, of some of the samples that are held out, which `held_out` numbers.
  virtual std::vector<double> eval_tallies(NetworkEngine& engine, std::span<const size_t> held_out) const;
};

// ErrorKind::kData where there are fewer samples than ranks.
void require_samples(const DataSource& source, size_t samples);

// Samples up to the end of each entry of data.train or data.eval, each of which may stand for several files, by those
// up to the end of each file.
std::vector<uint64_t> ends_of_entries(const std::vector<std::string>& entries, std::span<const uint64_t> file_ends);

// The folder where the source's samples are kept (data.cache); empty: in memory.
std::string token_cache_of(const DataSource& source);

// What a task wants of texts as tokens.
struct TextShape {
  bool ends_with_eos = false;  // data::DatasetOptions
  bool is_whole = false;       // however long: data.max_length cuts nothing
};

// Tokens of texts as a task's data: who derives it says how they become batches.
class TextData : public TaskData {
 public:
  explicit TextData(const DataSource& source, const TextShape& shape = {});

  std::vector<size_t> entry_ends() const override;
  std::string description() const override;
  std::vector<std::string> doubts() const override;

 protected:
  const data::TokenizedDataset& dataset() const { return dataset_; }
  const std::vector<uint64_t>& entry_ends_of_dataset() const { return entry_ends_; }

 private:
  std::string key_;
  data::DatasetOptions options_;
  data::TokenizedDataset dataset_;
  std::vector<uint64_t> entry_ends_;
};

// Of a batch of a task's samples: one forward pass.
using LossOfBatch = PassOfBatch<data::Batch>;

// What there is right before the first step: the weights are those that training begins with, also where a checkpoint
// will be loaded.
struct TaskStart {
  NetworkEngine& engine;
  const config::RunFile& run;
  TaskData& training;
  TaskData* held_out = nullptr;  // null: nothing is
  bool resumes = false;          // a checkpoint will be loaded
};

struct TaskType {
  std::string head;  // of the models' classes, the one that it trains (models::ModelClass::head)

  // Errors: those of the files; ErrorKind::kData where there are fewer samples than ranks.
  std::unique_ptr<TaskData> (*read)(const DataSource& source);

  // Of a batch of those samples: one forward pass. Null: batch_loss, which alone can run over a pipeline.
  BatchLoss (*loss)(NetworkEngine& engine, const data::Batch& batch) = nullptr;

  // Of a batch's tokens, about how many the loss counts: for the estimate of memory, of models that compute logits of
  // those alone. Null: all.
  double (*target_share)(const config::RunFile& run) = nullptr;

  // Of what is held out: what `metrics` are made of, where the loss is batch_loss. Null: of the loss alone.
  TalliesOf tallies = nullptr;
  std::vector<Metric> (*metrics)(const config::RunFile& run) = nullptr;  // null: the loss alone
  bool writes_texts = false;  // that an evaluation can score: training.eval_bleu

  // The names of what the model tells apart, where its head has an output for each: run.data.labels, or what the
  // model's folder or the data say. Null: the model's sizes do not depend on the data.
  std::vector<std::string> (*labels)(const config::RunFile& run) = nullptr;

  // Makes the loss, of training and of evaluations, where that needs more than a batch; then `loss` is not used. Called
  // once, collectively. What it is given outlives the loss.
  LossOfBatch (*start)(const TaskStart& start) = nullptr;

  bool keeps_tokens = false;     // honours data.cache
  int64_t rows_of_sample = 1;    // of a batch's arrays: for the estimate of memory
  bool without_dropout = false;  // unless the run file says model.dropout
  double rate_share = 1;         // of the learning rates of runs without a run file (quick_run.h)
};

// Adds a task of one's own to those of `tessera train`: at the start of a program, before anything is looked up.
// `name`: the run file's `task`; `summary`: one line. ErrorKind::kUsage where the name is taken.
void add_task(const char* name, const char* summary, TaskType task);

}  // namespace tessera::train

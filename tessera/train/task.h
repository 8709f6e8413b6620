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

namespace tessera::train {

// Of one forward pass on one rank.
struct BatchLoss {
  at::Tensor sum;       // scalar: the loss added up over the targets; backward starts here
  int64_t targets = 0;  // as Samples::count_targets counts them
  int64_t tokens = 0;   // without padding, for the rate of the progress bar; 0: not counted
};

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
  virtual BatchLoss loss(size_t micro_batch) = 0;

  // What is held out from training; 0: nothing.
  virtual size_t eval_samples() const = 0;
  virtual BatchLoss eval_loss(std::span<const size_t> samples) = 0;
};

template <class Batch>
struct TaskParts {
  data::Samples<Batch> train;
  std::function<BatchLoss(const Batch&)> loss;  // runs the engine's forward
  data::Samples<Batch> eval = {};               // held out; by default nothing
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
  BatchLoss loss(size_t micro_batch) override { return parts_.loss(step_.micro_batches[micro_batch]); }
  size_t eval_samples() const override { return parts_.eval.size; }
  BatchLoss eval_loss(std::span<const size_t> samples) override {
    return parts_.loss(parts_.eval.collate(samples, /*epoch=*/0));
  }

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

// What `tessera train` can train for, by the run file's `task`, is a TaskType: it stands between data and a model. It
// says which of the model's classes is trained, how files become samples and samples batches, and how a batch becomes a
// loss.

// Some files of a run, to be read.
struct DataSource {
  const config::RunFile& run;
  std::string key;                        // "data.train" or "data.eval", for messages
  const std::vector<std::string>& paths;  // what it names
  const data::Tokenizer& tokenizer;       // used only during the call
  int ranks = 1;
};

// What was read of them.
class TaskData {
 public:
  virtual ~TaskData() = default;

  virtual data::Samples<data::Batch> samples() const = 0;  // which borrow this
  virtual std::string description() const = 0;             // one line for the user
  virtual std::vector<std::string> doubts() const = 0;     // what is probably not meant, a line each
};

// ErrorKind::kData where there are fewer samples than ranks.
void require_samples(const DataSource& source, size_t samples);

// What a task wants of texts as tokens.
struct TextShape {
  bool ends_with_eos = false;  // data::DatasetOptions
  bool is_whole = false;       // however long: data.max_length cuts nothing
};

// Tokens of texts as a task's data: who derives it says how they become batches.
class TextData : public TaskData {
 public:
  explicit TextData(const DataSource& source, const TextShape& shape = {});

  std::string description() const override;
  std::vector<std::string> doubts() const override;

 protected:
  const data::TokenizedDataset& dataset() const { return dataset_; }

 private:
  std::string key_;
  data::DatasetOptions options_;
  data::TokenizedDataset dataset_;
};

struct TaskType {
  std::string head;  // of the models' classes, the one that it trains (models::ModelClass::head)

  // Errors: those of the files; ErrorKind::kData where there are fewer samples than ranks.
  std::unique_ptr<TaskData> (*read)(const DataSource& source);

  // Of a batch of those samples: one forward pass. Usually batch_loss.
  BatchLoss (*loss)(NetworkEngine& engine, const data::Batch& batch);

  // Of a batch's tokens, about how many the loss counts: for the estimate of memory, of models that compute logits of
  // those alone. Null: all.
  double (*target_share)(const config::RunFile& run) = nullptr;
};

// Adds a task of one's own to those of `tessera train`: at the start of a program, before anything is looked up.
// `name`: the run file's `task`; `summary`: one line. ErrorKind::kUsage where the name is taken.
void add_task(const char* name, const char* summary, TaskType task);

}  // namespace tessera::train

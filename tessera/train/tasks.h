// What `tessera train` can train for, by the run file's `task`. To add one: a file that makes a TaskType, and a line in
// tasks.cpp; in a program of one's own, a call before anything else:
//
//   train::tasks().add({"toy", "say every token again", toy_task()});
//
// A task is what stands between data and a model: which of the model's classes is trained, how files become samples and
// samples batches (with a collator of data/collators.h, or one of its own), and how a batch becomes a loss.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/base/open_registry.h"
#include "tessera/config/run_file.h"
#include "tessera/data/batch.h"
#include "tessera/data/samples.h"
#include "tessera/data/tokenizer.h"
#include "tessera/train/batch_loss.h"

namespace tessera::train {

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

OpenRegistry<TaskType>& tasks();

// ErrorKind::kConfig, with the nearest of those known, for a task that is not in the table.
const TaskType& task_of(const config::RunFile& run);

TaskType masked_lm_task();  // masked_lm.cpp

}  // namespace tessera::train

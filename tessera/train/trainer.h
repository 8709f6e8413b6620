// The loop of `tessera train`: steps, metrics, evaluation, checkpoints, a clean end on Ctrl-C.
//
// The loss of a step is divided by the number of target tokens of the whole global batch (all ranks, all accumulation
// steps), so the same samples give the same step however they are split.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/base/signals.h"
#include "tessera/config/run_file.h"
#include "tessera/data/loader.h"
#include "tessera/train/masked_lm.h"

namespace tessera::train {

struct TrainerParts {
  BertEngine& engine;
  data::Loader& loader;
  int64_t accumulation = 1;
  int64_t data_samples = 0;                              // in an epoch
  const data::TokenizedDataset* eval_dataset = nullptr;  // null: nothing is held back
  const data::MlmCollator* eval_collator = nullptr;
};

struct TrainerOptions {
  std::filesystem::path output;
  std::filesystem::path model;  // the folder that training begins from, noted in checkpoints
  int64_t max_steps = 0;        // optimizer steps of the whole run
  int64_t eval_steps = 0;       // 0: at the end of each epoch
  int64_t save_steps = 0;       // 0: at the end of each epoch
  checkpoint::Retention retention = {.keep_last = 2};
  bool async_save = true;  // write checkpoints beside training
  std::string resume;      // "": start; "auto": the newest checkpoint of the output, if any; else a checkpoint's folder
};

struct TrainerReport {
  int64_t steps = 0;
  bool interrupted = false;
  std::optional<double> loss_before;  // on held-back text, at the start of this process
  std::optional<double> loss_after;
  std::string checkpoint;  // the newest
};

class Trainer {
 public:
  // Borrows the parts.
  Trainer(const TrainerParts& parts, const TrainerOptions& options);

  // Collective.
  TrainerReport run();

 private:
  struct Position {
    int64_t epoch = 0;
    int64_t step_in_epoch = 0;  // steps of the epoch that are done, the last one not: then the next epoch begins
    int64_t samples = 0;
    int64_t tokens = 0;
  };

  void resume();
  void refuse_to_overwrite() const;
  Position position_of(const nlohmann::json& state, const std::string& checkpoint) const;
  LossSum take_step(const data::StepBatches& batches);
  data::StepBatches next_batches();
  double held_back_loss();
  void save();
  void finish_saving();
  void report_failed_save(const Error& error);
  bool stop_requested();

  TrainerParts parts_;
  TrainerOptions options_;
  SignalInbox inbox_;
  Position position_;
  std::string last_saved_;             // the newest that is whole
  std::string saving_;                 // the newest that was begun; empty: it failed
  std::optional<Error> save_failure_;  // the last
};

}  // namespace tessera::train

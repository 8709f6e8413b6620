// The loop of `tessera train`, for any task: steps, metrics, evaluation, checkpoints, a clean end on Ctrl-C.
//
// The loss of a step is divided by the targets of the whole global batch (all ranks, all accumulation steps), so the
// same samples give the same step however they are split.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/signals.h"
#include "tessera/checkpoint/retention.h"
#include "tessera/monitor/monitor.h"
#include "tessera/train/evaluation.h"
#include "tessera/train/task.h"

namespace tessera::train {

class Progress;

struct TrainerOptions {
  std::filesystem::path output;  // metrics and checkpoints/ lie there; made if it is missing
  int64_t max_steps = 0;         // optimizer steps of the whole run
  int64_t eval_steps = 0;        // 0: at the end of each epoch
  int64_t eval_samples = 0;      // see EvaluationOptions::most_samples
  bool eval_at_start = false;    // also before the first step
  int64_t save_steps = 0;        // 0: at the end of each epoch
  checkpoint::Retention retention = {.keep_last = 2};
  bool keep_best = false;  // save after each evaluation that is the best so far, and keep that checkpoint
  bool async_save = true;  // write checkpoints beside training
  std::vector<std::string> monitors = {"jsonl"};  // by the names of monitor/monitors.h
  std::string resume =
      {};  // "": start; "auto": the newest checkpoint of the output, if any; else a checkpoint's folder
  std::string client_state = "{}";  // a JSON object that each checkpoint notes beside the trainer's own
};

// A loss on what is held out, and after how many steps.
struct HeldOutLoss {
  int64_t step = 0;
  double loss = 0;
};

struct TrainerReport {
  int64_t steps = 0;    // of the whole run
  int64_t trained = 0;  // of them, taken by this process
  bool interrupted = false;
  std::optional<HeldOutLoss> first;  // of this process
  std::optional<HeldOutLoss> last;
  std::optional<HeldOutLoss> best;   // of the run, with keep_best
  std::string checkpoint;            // the newest
  std::vector<std::string> metrics;  // where the monitors wrote; rank 0's
};

// ErrorKind::kUsage where the output holds a run with checkpoints.
void refuse_to_overwrite(const std::filesystem::path& output);

class Trainer {
 public:
  // Borrows engine and task.
  Trainer(ModuleEngine& engine, Task& task, TrainerOptions options);
  ~Trainer();

  // Collective. Resumes, trains, saves. Errors: those of the engine; ErrorKind::kUsage where the output holds a run
  // already and nothing is said of resuming.
  TrainerReport run();

 private:
  struct Position {
    int64_t epoch = 0;
    int64_t step_in_epoch = 0;  // steps of the epoch that are done, the last one not: then the next epoch begins
    int64_t samples = 0;
    int64_t tokens = 0;
  };

  void resume();
  void restore_position(const LoadedCheckpoint& loaded);
  void open_output();
  void train_step();
  LossSum take_step(const data::StepPlace& step);
  void evaluate_now();
  void save();
  void save_as_best();
  void finish_saving();
  void report_failed_save(const Error& error);
  bool stop_requested();
  bool speaks() const { return engine_.world().rank() == 0; }

  ModuleEngine& engine_;
  Task& task_;
  TrainerOptions options_;
  SignalInbox inbox_;
  Position position_;
  TrainerReport report_;
  bool epoch_ended_ = false;  // with the last step
  std::vector<std::unique_ptr<monitor::Monitor>> monitors_;
  std::unique_ptr<Progress> progress_;
  std::string last_saved_;             // the newest that is whole
  std::string saving_;                 // the newest that was begun; empty: it failed
  bool saving_best_ = false;           // … is the best so far
  int64_t saved_at_ = -1;              // steps of the newest that was begun
  std::optional<Error> save_failure_;  // the last
};

}  // namespace tessera::train

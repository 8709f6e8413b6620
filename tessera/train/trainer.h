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
#include <utility>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/train/task.h"

namespace tessera::train {

struct TrainerOptions {
  std::filesystem::path output;  // metrics and checkpoints/ lie there; made if it is missing
  int64_t max_steps = 0;         // optimizer steps of the whole run
  int64_t eval_steps = 0;        // 0: at the end of each epoch
  int64_t eval_samples = 0;      // of what is held out, spread evenly over it, the same ones each time; 0: all
  bool eval_at_start = false;    // also before the first step
  int64_t save_steps = 0;        // 0: at the end of each epoch
  checkpoint::Retention retention = {.keep_last = 2};
  std::string best_by = "eval_loss";  // which of the task's metrics says what is best
  bool keep_best = false;             // save after each evaluation that is the best so far, and keep that checkpoint
  int64_t patience = 0;               // stop after so many evaluations in a row without a better one; 0: never
  bool async_save = true;             // write checkpoints beside training
  bool trainable_only = false;        // leave frozen parameters out of them
  int64_t max_bad_steps = 10;         // in a row, then the run ends with an error (see Trainer::run); 0: never
  std::vector<std::string> monitors = {"jsonl"};  // by name: monitor/monitor.h
  std::string resume =
      {};  // "": start; "auto": the newest checkpoint of the output, if any; else a checkpoint's folder
  std::string client_state = "{}";  // a JSON object that each checkpoint notes beside the trainer's own
};

// What was found on what is held out, and after how many steps.
struct HeldOutLoss {
  int64_t step = 0;
  double loss = 0;
  std::vector<std::pair<std::string, double>> others = {};  // the task's metrics: "accuracy", …
};

struct BestEvaluation {
  int64_t step = 0;
  double value = 0;  // of the metric that says what is best
};

// What the steps of all ranks sent to others, and how long they waited, over the groups of one name.
struct GroupTraffic {
  std::string name;                          // "tp"; empty: all ranks
  double least_sent = 0, most_sent = 0;      // bytes a step, of the rank that sent least and of the one that sent most
  double least_waited = 0, most_waited = 0;  // share of the time of the steps, likewise
};

struct TrainerReport {
  int64_t steps = 0;                 // of the whole run
  int64_t trained = 0;               // of them, taken by this process
  bool interrupted = false;          // a signal stopped it; …
  bool wants_requeue = false;        // … SIGUSR1, so that it is to go on later (base/signals.h)
  std::optional<HeldOutLoss> first;  // of this process
  std::optional<HeldOutLoss> last;
  std::optional<BestEvaluation> best;  // of the run, with keep_best or patience
  bool out_of_patience = false;        // it stopped because nothing got better
  std::string checkpoint;              // the newest
  std::string best_checkpoint;         // with keep_best, and where there is one; rank 0's
  std::vector<std::string> metrics;    // where the monitors wrote; rank 0's
  std::vector<GroupTraffic> traffic;   // of the steps that this process took
};

class Trainer {
 public:
  // Borrows engine and task.
  Trainer(ModuleEngine& engine, Task& task, TrainerOptions options);
  ~Trainer();

  // Collective. Resumes, trains, saves. Errors: those of the engine; ErrorKind::kUsage where the output holds a run
  // already and nothing is said of resuming, or where another process trains into it; kData where training diverged.
  // A step is bad whose loss is not finite, or that was skipped though the loss scale cannot go lower: max_bad_steps of
  // them in a row, or nothing else in a whole run, is divergence. Checkpoints of such steps say so, and retention then
  // keeps the last one before them as well.
  TrainerReport run();

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace tessera::train

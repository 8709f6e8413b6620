// `tessera train run.yaml`: what is checked before any rank starts, and what one rank does: it reads the run file,
// builds model, data and engine, trains, exports, reports.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/config/batch_sizes.h"
#include "tessera/config/run_file.h"

namespace tessera::train {

struct RunOptions {
  std::string run_file;
  std::vector<std::string> overrides;  // "training.max_steps=50"
  std::string resume;                  // see TrainerOptions::resume
  std::string trace;                   // a file for the timeline (engine/timeline.h); empty: none
  std::string program = "tessera";     // as the user called it, for commands in the report
};

// Collective; the ranks find each other through the environment. Returns the exit code: 0 also where a signal stopped
// it and the state is saved, but after SIGUSR1 kRequeueCode (base/signals.h); in a run of several ranks an error is
// told here, while the peers' connections are still open; alone it is thrown.
int run_training(const RunOptions& options);

// Opens what the run file names, reading no texts: the model's config.json and weights, the tokenizer, the data's
// files, the ds_config for `ranks` ranks. Throws what is wrong with them; also for a task or a model type that is not
// known, and for a model that is of another class than the task trains. Returns the run with the labels that its task
// tells apart (TaskType::labels) in data.labels.
config::RunFile check_run(const config::RunFile& run, int64_t ranks);

// Of so many ranks, those that read samples of their own. ErrorKind::kConfig where the run's mesh does not factor them.
int64_t readers_of(const config::RunFile& run, int64_t ranks);

// The batch on `ranks` ranks. ErrorKind::kConfig where it does not fit them.
config::BatchSizes batch_of(const config::RunFile& run, int64_t ranks);

// Whether a run has saved there.
bool holds_checkpoints(const std::filesystem::path& output);

// ErrorKind::kUsage where the output holds a run with checkpoints.
void refuse_to_overwrite(const std::filesystem::path& output);

// ErrorKind::kData where `resume` (TrainerOptions::resume) names a folder without a checkpoint.
void require_checkpoint(const std::string& resume);

// `tessera train --dry-run`: checks everything, reads the data, and says what would be trained. Starts no ranks.
// `ranks_of_host`: of the host that has most; whether they fit is judged by this host's memory.
void dry_run(const config::RunFile& run, int64_t ranks, int64_t ranks_of_host);

}  // namespace tessera::train

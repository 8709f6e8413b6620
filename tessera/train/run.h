// `tessera train run.yaml` on one rank: reads the run file, builds model, data and engine, trains, exports, reports.
#pragma once

#include <string>
#include <vector>

namespace tessera::train {

struct RunOptions {
  std::string run_file;
  std::vector<std::string> overrides;  // "training.max_steps=50"
  std::string resume;                  // see TrainerOptions::resume
  std::string trace;                   // a file for the timeline (engine/timeline.h); empty: none
  std::string program = "tessera";     // as the user called it, for commands in the report
};

// Collective; the ranks find each other through the environment. Returns the exit code: in a run of several ranks an
// error is told here, while the peers' connections are still open; alone it is thrown.
int run_training(const RunOptions& options);

}  // namespace tessera::train

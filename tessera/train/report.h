// What `tessera train` says at the end of a run: losses, memory, where things lie, and commands that go on from there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/config/run_file.h"
#include "tessera/train/run.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

struct RunRanks {
  std::string all;               // what is said of a group of all of them: the axis on which they lie, or "all ranks"
  std::optional<double> bubble;  // of a pipeline: the share of a step in which a rank idles, by the schedule
};

// `memory`: a sentence a rank. The commands are quoted for a shell, and name the program as it was called.
std::string report_text(const RunOptions& options, const config::RunFile& run, const TrainerReport& report,
                        const std::vector<std::string>& memory, const RunRanks& ranks);

}  // namespace tessera::train

// What `tessera train` says at the end of a run: losses, memory, where things lie, and commands that go on from there.
#pragma once

#include <string>
#include <vector>

#include "tessera/config/run_file.h"
#include "tessera/train/run.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

// `memory`: a sentence a rank. The commands are quoted for a shell, and name the program as it was called.
std::string report_text(const RunOptions& options, const config::RunFile& run, const TrainerReport& report,
                        const std::vector<std::string>& memory);

}  // namespace tessera::train

// The flags of a run that is started again when a rank fails: --max-restarts and --min-nproc.
#pragma once

#include <CLI/CLI.hpp>

#include "tessera/launch/launch_options.h"

namespace tessera::cli {

// `restarts` is borrowed and outlives the command.
void add_restart_flags(CLI::App& command, launch::Restarts& restarts);

// ErrorKind::kUsage where the flags that were given do not fit each other or the number of ranks.
void check_restart_flags(const launch::Restarts& restarts, int nproc);

}  // namespace tessera::cli

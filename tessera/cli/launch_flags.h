// The options of a launch, which `tessera launch` and `tessera train` share: DeepSpeed's, with - or _ between words. Of
// them `tessera generate` and `tessera chat` have --nproc.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tessera/launch/launch_request.h"
#include "tessera/launch/restarts.h"

namespace tessera::cli {

struct LaunchFlags {
  launch::LaunchRequest request = {};
  launch::ProgramForm form = {};
  launch::Restarts restarts = {};
  int nproc = 1;         // --num_gpus by its other name
  bool dry_run = false;  // add_launch_flags leaves it to the command
  bool print_sbatch = false;

  // ErrorKind::kUsage for options that a job's script has no use for.
  void check_print_sbatch() const;

  // Whether this process is to do the command's work itself: nobody asked for ranks, or for one, which it is.
  bool runs_here(const CLI::App& command) const;

  // ErrorKind::kUsage for fewer ranks than one.
  launch::LaunchRequest made(const CLI::App& command) const;
};

void add_launch_flags(CLI::App& command, LaunchFlags& flags);

// Those that say how a program is called, which `tessera train` has none of.
void add_program_flags(CLI::App& command, LaunchFlags& flags);

}  // namespace tessera::cli

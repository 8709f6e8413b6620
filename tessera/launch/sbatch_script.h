// The job script of a run, for sbatch: --print-sbatch.
//
// The script starts one srun. Two minutes before the job's end Slurm signals the script (SIGUSR1), which hands that to
// the ranks; a training saves and leaves with kRequeueCode (base/signals.h), upon which the script has the job queued
// again, and the next life goes on from what was saved. What the launch says of Slurm by --launcher_args becomes lines
// of #SBATCH.
#pragma once

#include <string>
#include <vector>

#include "tessera/launch/runners.h"

namespace tessera::launch {

struct JobCommand {
  std::string name = {};                // of the job; other characters than letters, digits, '.', '_', '-' become '-'
  std::vector<std::string> words = {};  // of one task
  std::string output = {};              // of a training: the folder, of which each job of an array gets its own
};

// The launch that the script is to be for: decide (runners.h), on nodes that Slurm is yet to choose unless a hostfile
// names them. ErrorKind::kUsage for options that a script has no use for.
Launch decide_for_job(const LaunchRequest& request);

// Ends with a newline.
std::string sbatch_script(const Launch& launch, const JobCommand& command);

// How a task runs any program, by the launch's own: it finds a rank's variables.
JobCommand job_command(const LaunchRequest& request);

}  // namespace tessera::launch

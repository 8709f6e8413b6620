// The hosts of a run by --launcher slurm that no hostfile names: those of the job that this process is in; outside of
// one, so many as srun itself is to ask Slurm for.
#pragma once

#include <vector>

#include "tessera/launch/hostfile.h"
#include "tessera/launch/launch_request.h"

namespace tessera::launch {

// A host has --nproc slots; in a job that was given tasks (sbatch --ntasks), as many as the job has there; else one.
// Outside of a job hosts have no names yet: node-0, node-1, … ErrorKind::kUsage for more nodes than the job has, and
// for
// --include or --exclude outside of one.
std::vector<HostSlots> slurm_pool(const LaunchRequest& request);

}  // namespace tessera::launch

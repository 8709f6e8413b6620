// Which rank a process is by what Slurm tells the tasks of a step, the one reader of those variables.
//
//   srun -n 4 ./train       each of the four is in a step: SLURM_STEP_ID is set, and SLURM_PROCID is its rank
//   sbatch job.sh           the script is in a job and in no step, although SLURM_PROCID is 0 there: no rank
//
// Ranks meet at the first host of the step, at a port that follows from the numbers of job and step, so that jobs which
// share a host (an array's, say) do not take each other's. MASTER_ADDR and MASTER_PORT win over both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

struct SlurmStep {
  int rank = 0;
  int tasks = 1;
  int local_rank = 0;  // of the tasks of this host
  int local_tasks = 1;
  int node = 0;  // index of this host among the step's
  int nodes = 1;
  std::string master_addr = {};
  int master_port = 0;
};

// Whether this process is a task of a step, and not the rank of an mpirun that the step only carries to its hosts.
bool is_in_slurm_step();

// Nothing where it is not. ErrorKind::kUsage for a variable that is missing or makes no sense.
std::optional<SlurmStep> slurm_step_of_environment();

// 10000 to 31999: below the ports that the kernel gives to outgoing connections.
int slurm_port(uint64_t job, uint64_t step);

// How many tasks the job that this process is in was given, where it is in no step of them; 0 where it is in no job.
// More than one says that somebody may have meant to start ranks and forgot srun.
int64_t tasks_of_slurm_job_without_step();

}  // namespace tessera

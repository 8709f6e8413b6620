// How the processes of a run find each other.
//
// Protocol:
//   0) (all ranks)  world_from_environment: who am I, how many are we, where is rank 0?
//   1) (rank 0)     opens a key-value store at master_addr:master_port; refused at once when the port is taken
//   2) (all ranks)  connect to it, write "joined/<rank>", and wait for every other rank's
//   3) (all ranks)  connect the data plane (backends.h) to every other rank
// Under mpirun nobody has to say where rank 0 is: it takes a free port and tells the others through MPI, whatever the
// backend. Without the plugin for that MPI, ranks of one host meet at its loopback address; those of several need
// MASTER_ADDR. A world of one does none of this: it needs nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace tessera::comm {

class Group;
struct InitOptions;

struct World {
  int rank = 0;
  int local_rank = 0;  // rank within the host
  int size = 1;
  int local_size = 0;       // ranks on this host, where the launcher says so; else 0
  std::string master_addr;  // empty: not said; the ranks are those of one mpirun, and find out through MPI
  int master_port = 0;
  bool store_is_running = false;  // torchrun's agent already serves the store at master_port
};

// From RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torchrun, DeepSpeed and `tessera launch` set them,
// else from a step of Slurm (base/slurm_step.h), or what OpenMPI (OMPI_COMM_WORLD_RANK, …) or MPICH (PMI_RANK, …) set;
// else a world of one. ErrorKind::kUsage names a variable that is missing or makes no sense. MASTER_ADDR may be missing
// under mpirun and srun.
World world_from_environment();

// How many ranks the launcher started on this host, by its variables; 0 where they do not say.
int64_t ranks_of_this_host();

// Whose variables that would be: "torchrun" (whose names DeepSpeed's launcher and Tessera's use), "Slurm", "OpenMPI" or
// "MPICH"; empty where none are set.
std::string launcher_of_environment();

// For a process that is about to tell its user of a mistake and to end: what every rank finds wrong is to be told once.
// Under OpenMPI ranks other than 0 wait a moment, in which mpirun ends them if rank 0 has ended with an error. MPICH's
// leaves ranks that have not come to MPI yet alone, so there each tells.
void let_rank_0_fail_first();

// init_distributed (group.h) for a world that is known. Collective.
std::shared_ptr<Group> init_distributed(const World& world, const InitOptions& options);

}  // namespace tessera::comm

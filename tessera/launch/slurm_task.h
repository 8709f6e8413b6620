// One rank that srun has started as `tessera launch --slurm-task PROGRAM`: it gives the program the variables that a
// rank of any launcher finds, and becomes it.
#pragma once

#include "tessera/base/slurm_step.h"
#include "tessera/launch/environment.h"
#include "tessera/launch/rank_program.h"

namespace tessera::launch {

// RANK, WORLD_SIZE, … of a task.
Environment variables_of_task(const SlurmStep& step);

// Does not return. ErrorKind::kUsage where this is no task of a step, and for a program that there is not.
[[noreturn]] void become_slurm_task(const RankProgram& program);

}  // namespace tessera::launch

// The check before a run takes any memory: a run that cannot fit says so at once, with numbers and what would fit,
// instead of being killed by the kernel later.
//
// It refuses on a lower bound, so that no run that fits is refused: what stays between steps and the parameters that
// stage 3 gathers (MemoryTerm::certain), against available memory and free swap, the limits of control groups,
// RLIMIT_DATA and RLIMIT_AS, and the free bytes of the NVMe folder's disk. Activations and the like are in the text
// only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/plan/memory_model.h"
#include "tessera/plan/planner.h"

namespace tessera::plan {

// What this machine still has.
struct MachineRoom {
  uint64_t available = 0;  // of the host's memory; 0: not known, nothing is refused
  uint64_t free_swap = 0;
  std::optional<uint64_t> process_left;  // of the resource limits of one process
  uint64_t disk = 0;                     // of the NVMe folder's disk
  std::string nvme_path;                 // where offload goes, or could go; empty: nowhere
};

// `nvme_path` may be empty, or a folder that does not exist yet.
MachineRoom machine_room(const std::string& nvme_path);

// What each of the ranks of a host may take; swap, which is slow, left out.
RankShare share_of(const MachineRoom& room, int64_t ranks_of_host);

struct MemoryCheck {
  const ModelCensus& model;
  TrainingSetup setup;
  MachineRoom room;
  int64_t ranks_of_host = 1;
  int64_t samples_of_a_rank = 1;  // in an optimizer step
  std::string where;              // the run file, for the message
};

// ErrorKind::kMachine where the run cannot fit.
void check_fits(const MemoryCheck& check);

}  // namespace tessera::plan

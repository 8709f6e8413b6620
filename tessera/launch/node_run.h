// One host's part of a run: starts the ranks of that host here, and returns once all have ended. planned_ranks.h says
// what it promises of signals, failures and what is left behind.
#pragma once

#include <string>

#include "tessera/launch/cluster_plan.h"
#include "tessera/launch/planned_ranks.h"

namespace tessera::launch {

struct NodeRun {
  int node_rank = 0;
  int pid_file = 0;           // pid_file.h
  bool shares_cores = false;  // OMP_NUM_THREADS, where the environment sets none, by the host's cores
  std::string label = {};     // NodeFacts::label
  std::string file = {};      // to execute in place of the command's first word
  Supervision supervision = {};
};

// Of a run on this host alone, it makes the ranks' secret where the environment names none. Nothing has started yet
// when it throws ErrorKind::kUsage: no such host, program, numactl or folder for logs.
RunOutcome run_node(const ClusterPlan& cluster, const NodeRun& node);

}  // namespace tessera::launch

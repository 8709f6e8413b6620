// The environment in which each rank runs: arithmetic on names and values, nothing is read or set here.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace tessera::launch {

using Environment = std::map<std::string, std::string>;

struct RankPlace {
  int rank = 0;  // of all ranks of the run
  int world_size = 1;
  int local_rank = 0;  // of the ranks of this host
  int local_world_size = 1;
  int node_rank = 0;
  int nodes = 1;
  std::string master_addr = {};
  int master_port = 0;
};

// What a rank needs to find the others, under the names that PyTorch's env:// rendezvous reads (RANK, WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT, LOCAL_RANK, LOCAL_WORLD_SIZE) and those that DeepSpeed's launcher adds (LOCAL_SIZE,
// CROSS_RANK, CROSS_SIZE).
Environment rank_variables(const RankPlace& place);

// OMP_NUM_THREADS with which `nproc` ranks fill `cores` and do not crowd them: at least 1.
int threads_per_rank(int cores, int nproc);

// "NAME=value" for execve: `inherited` (entries of environ) with `changes` in place of the same names.
std::vector<std::string> merge_environment(const std::vector<std::string>& inherited, const Environment& changes);

}  // namespace tessera::launch

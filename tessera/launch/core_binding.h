// Which cores each rank of a host is bound to (--bind_cores_to_rank): equal, consecutive shares, as DeepSpeed makes
// them. The binding itself is numactl's, put before the rank's command.
#pragma once

#include <string>
#include <vector>

namespace tessera::launch {

// "3" -> 3, "2-4" -> 2, 3, 4. ErrorKind::kUsage for anything else, and for a range that ends before it starts.
std::vector<int> parse_core_range(const std::string& text);

// "0,2-4": each range after the one before it.
std::vector<int> parse_core_list(const std::string& text);

// The cores of each NUMA node of this host, from /sys; empty where it says nothing.
std::vector<std::vector<int>> numa_cores();

struct CoreShare {
  std::string core_list = {};                     // to divide among the ranks; empty: the cores of all nodes
  std::vector<std::vector<int>> numa_nodes = {};  // numa_cores()
  int ranks = 1;                                  // on this host
  int local_rank = 0;
};

struct CoreBinding {
  std::vector<int> cores;
  std::vector<std::string> command;  // {"numactl", "-m", "0", "-C", "0,1"}: -m where one of several nodes has them all
};

// ErrorKind::kUsage where there are fewer cores than ranks.
CoreBinding bind_cores(const CoreShare& share);

// ErrorKind::kUsage for a list that cannot be read, or that is given (not empty) where cores are not bound.
void check_core_options(bool binds, const std::string& core_list);

// ErrorKind::kUsage where numactl is not installed here, or KMP_AFFINITY would bind threads in its own way.
void require_core_binding();

}  // namespace tessera::launch

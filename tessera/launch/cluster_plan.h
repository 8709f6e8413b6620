// Which ranks a run consists of, host by host, and what each is given. Arithmetic only: nothing is started or read from
// the machine, so every case can be tested.
//
// Ranks are numbered through the hosts in their order, and through each host's slots. A rank's place is in its
// environment (environment.h); CUDA_VISIBLE_DEVICES names the slots of its host, so that LOCAL_RANK counts in them.
#pragma once

#include <string>
#include <vector>

#include "tessera/launch/hostfile.h"
#include "tessera/launch/launch_request.h"
#include "tessera/launch/process_plan.h"

namespace tessera::launch {

struct ClusterPlan {
  std::vector<HostSlots> hosts = {};
  RankProgram program = {};
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  bool sets_devices = false;  // CUDA_VISIBLE_DEVICES; else it stays as it is
  bool binds_cores = false;
  std::string core_list = {};
  std::string log_folder = {};
  Environment environment = {};
  RankOutput output = RankOutput::kPrefixAll;
};

// What is not the same on every host.
struct NodeFacts {
  int node_rank = 0;
  int cores = 0;                                  // to share out by OMP_NUM_THREADS; 0: that stays as it is
  std::vector<std::vector<int>> numa_nodes = {};  // for binding (core_binding.h)
  std::string secret = {};  // made for this run (base/run_secret.h); empty: the environment names one
  std::string time = {};    // begins the names of log files
  std::string label = {};   // in the prefix of lines: "worker-0 rank 3"; empty: "rank 3"
};

// The host's ranks, in their order. ErrorKind::kUsage where there are fewer cores than ranks to bind to them.
std::vector<RankPlan> plan_node(const ClusterPlan& cluster, const NodeFacts& node);

// The rank of the host's first slot.
int first_rank(const std::vector<HostSlots>& hosts, int node_rank);

// ErrorKind::kUsage where there is no host of that index.
void check_node_rank(const std::vector<HostSlots>& hosts, int node_rank);

// The same of a command that runs on every host (--no_ssh), which has to be told which it is on.
void check_own_node_rank(const LaunchRequest& request, const std::vector<HostSlots>& hosts);

// Of the request, for the hosts that were chosen.
ClusterPlan cluster_plan(const LaunchRequest& request, const std::vector<HostSlots>& hosts);

// What would run where, for people: a line for each host, one for each rank.
std::string plan_text(const ClusterPlan& cluster);

}  // namespace tessera::launch

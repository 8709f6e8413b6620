// Runs a plan over its hosts: one ssh a host, at whose other end `tessera launch --node-part` starts that host's ranks
// (node_part.h). Lines come back as "[worker-1 rank 3] …", whole.
//
// What planned_ranks.h promises holds for all hosts: when a rank fails, on whichever, the others are stopped everywhere
// and the exit code is its; SIGINT, SIGTERM and SIGHUP reach all ranks; and none is left behind, not even when this
// process is killed or a connection breaks, because the launcher on the other side stops its ranks at the end of its
// input, or when that is silent. A host that has not been heard of for allowed_silence() (host_line.h) is named and
// given up, and the others are stopped: within 5 s after that all ranks have ended that can be reached, and at most as
// long again those of that host, if it lives. No rank reads standard input.
//
// Every host has this program under the same path, and the folder in which the run was started.
#pragma once

#include <string>
#include <vector>

#include "tessera/launch/cluster_plan.h"
#include "tessera/launch/planned_ranks.h"

namespace tessera::launch {

// {"ssh", options…, host}: without questions, and noticing by itself that a host is gone, if later than run_ssh does.
std::vector<std::string> ssh_words(const LaunchRequest& request, const std::string& host);

struct SshRun {
  LaunchRequest request = {};
  std::string program = {};  // this program, as it is called on every host
  std::string folder = {};   // where ranks run
};

// An ssh for each host.
std::vector<RankPlan> plan_ssh(const ClusterPlan& cluster, const SshRun& run);

// Returns once all have ended. ErrorKind::kUsage where ssh is not installed.
RunOutcome run_ssh(const ClusterPlan& cluster, const SshRun& run);

// The host's first address, by `hostname -I` there. ErrorKind::kMachine where it does not say.
std::string address_of_host(const LaunchRequest& request, const std::string& host);

}  // namespace tessera::launch

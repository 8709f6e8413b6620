// Which of the hosts and slots of a hostfile a run takes, by DeepSpeed's options.
//
//   --include worker-0@worker-1:0,2      all slots of worker-0, and two of worker-1
//   --exclude worker-1:3                 everything but that slot; a host that has none left goes
//   --num_nodes 2 --num_gpus 4           the first two hosts, and slots 0 to 3 of each
//
// Hosts stay in the hostfile's order, whatever a filter's is. Arithmetic on names; errors are ErrorKind::kUsage and
// name the option.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/launch/hostfile.h"
#include "tessera/launch/launch_request.h"

namespace tessera::launch {

// "worker-1:0,2"; without slots, all are meant.
HostSlots parse_filter_node(const std::string& text);

// Nodes with '@' between them, in the order in which they first come; a host that comes twice has the slots of both.
std::vector<HostSlots> parse_filter(const std::string& text);

struct HostFilter {
  std::string include = {};
  std::string exclude = {};  // one of the two, or neither
};

std::vector<HostSlots> filter_hosts(const std::vector<HostSlots>& hosts, const HostFilter& filter);

// The first `num_nodes` hosts, and slots 0 to `num_gpus` - 1 of each; a number below 1 leaves them as they are.
std::vector<HostSlots> first_hosts(const std::vector<HostSlots>& hosts, int num_nodes, int num_gpus);

// Refuses options that contradict one another whatever the hosts are, and a hostfile that is not there.
void check_host_options(const LaunchRequest& request);

// Without a hostfile a run is on this host alone, or (--no_ssh) on hosts that each start their own ranks; refuses
// options that name others.
void check_without_hostfile(const LaunchRequest& request);

// The hosts of the run: `pool` is what the hostfile names, or this host, and has been checked as above.
std::vector<HostSlots> choose_hosts(const LaunchRequest& request, const std::vector<HostSlots>& pool);

}  // namespace tessera::launch

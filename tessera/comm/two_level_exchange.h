// Collectives of ranks on several hosts in two levels: within a host through one exchange (shared memory), between
// hosts through another (messages), so that what crosses the network crosses it once for a host and not once for a
// rank.
//
// Hosts have one number of ranks each, and ranks count host by host. The ranks that have one place on their hosts speak
// to each other between hosts. Sums: those of a host in rank order, kept in fp32, then the hosts' in their order,
// rounded once. (Other bits than with one level, the same with every stage.)
#pragma once

#include <chrono>
#include <memory>

#include "tessera/comm/exchange.h"

namespace tessera::comm {

struct PlaceOfRank {
  int rank;
  int size;
  int ranks_a_host;
};

// `within`: of this host's ranks; `between`: of all ranks, of any thread. A collective ends within `timeout` of its
// start or fails.
std::unique_ptr<Exchange> make_two_level_exchange(std::unique_ptr<Exchange> within, std::unique_ptr<Exchange> between,
                                                  const PlaceOfRank& place, std::chrono::milliseconds timeout);

}  // namespace tessera::comm

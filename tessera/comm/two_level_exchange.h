// Collectives of ranks on several hosts in two levels: within a host through one exchange (shared memory), between
// hosts through another (messages), so that what crosses the network crosses it once per host and not once per
// rank.
//
// All hosts have the same number of ranks, and ranks are numbered host by host. Ranks with the same place on their
// hosts talk to each other between hosts. Sums: those of a host in rank order, kept in fp32, then the hosts' in their
// order, rounded once. (The bits differ from those of one level, but are the same at every stage.)
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

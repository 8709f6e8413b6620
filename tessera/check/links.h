// Latency and bandwidth between pairs of ranks, measured one pair after another, so that no two share a link: the first
// ranks of the hosts, or on one host all ranks. Of up to kAllPairs of them every pair, of more each with the next.
#pragma once

#include <utility>
#include <vector>

#include "tessera/check/finding.h"
#include "tessera/check/host_card.h"
#include "tessera/comm/group.h"

namespace tessera::check {

inline constexpr size_t kAllPairs = 8;

struct LinkSpeed {
  int from = 0;  // ranks; from < to, but for the last pair of a ring
  int to = 0;
  double latency = 0;  // seconds, one way: half of the shortest round trip
  double there = 0;    // bytes per second, of one large message
  double back = 0;

  double slower() const { return there < back ? there : back; }
};

std::vector<std::pair<int, int>> pairs_to_measure(const std::vector<HostCard>& cards);

// A pair with less than half of the bandwidth of the fastest one is a warning.
Findings judge_links(const std::vector<LinkSpeed>& links, const std::vector<HostCard>& cards);

// Collective. Rank 0 gets the result, the others nothing. About a second a pair, more where a link is slow.
std::vector<LinkSpeed> measure_links(comm::Group& world, const std::vector<HostCard>& cards);

}  // namespace tessera::check

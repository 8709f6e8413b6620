// Whether all-reduce, all-gather, reduce-scatter and broadcast give what they should: on whole numbers that fp32 holds
// exactly, small (7 elements a rank, which travel whole) and large (in shards), checked element by element on every
// rank.
#pragma once

#include <string>
#include <vector>

#include "tessera/check/finding.h"
#include "tessera/check/host_card.h"
#include "tessera/comm/group.h"

namespace tessera::check {

struct CollectiveResult {
  std::string name;
  bool right = false;
};

// Collective; the same result on every rank. A finding names the first rank whose result is wrong, the element, and
// where it can be told, the rank that it came from.
std::vector<CollectiveResult> check_collectives(comm::Group& world, const std::vector<HostCard>& cards,
                                                Findings& found);

}  // namespace tessera::check

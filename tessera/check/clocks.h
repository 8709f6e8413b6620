// How far the hosts' clocks are apart. Rank 0 asks the first rank of each other host for the time, and takes that to be
// the time in the middle of the round trip (Cristian 1989): wrong by half of the round trip at most, of which the
// shortest of several counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/check/finding.h"
#include "tessera/check/host_card.h"
#include "tessera/comm/group.h"

namespace tessera::check {

inline constexpr double kMostClockOffset = 1;  // seconds; beyond it, a warning

// Nanoseconds since 1970: when rank 0 asked and had the answer, by its own clock, and what the other's clock said.
struct RoundTrip {
  int64_t asked = 0;
  int64_t told = 0;
  int64_t answered = 0;
};

struct ClockOffset {
  int rank = 0;        // the first of its host
  double seconds = 0;  // its clock is ahead of rank 0's by so much
  double uncertainty = 0;
};

// Of the shortest; there is at least one.
ClockOffset offset_of(int rank, std::span<const RoundTrip> trips);

Findings judge_clocks(const std::vector<ClockOffset>& clocks, const std::vector<HostCard>& cards);

// Collective. Rank 0 gets the result, the others nothing.
std::vector<ClockOffset> compare_clocks(comm::Group& world, const std::vector<HostCard>& cards);

}  // namespace tessera::check

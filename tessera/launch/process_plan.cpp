#include "tessera/launch/process_plan.h"

#include <fmt/format.h>

namespace tessera::launch {

std::string name_of(const RankPlan& plan) { return plan.name.empty() ? fmt::format("rank {}", plan.rank) : plan.name; }

}  // namespace tessera::launch

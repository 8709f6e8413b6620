#include "tessera/launch/process_plan.h"

#include <fmt/format.h>

namespace tessera::launch {

bool stands_for_host(const RankPlan& plan) { return !plan.first_input.empty(); }

std::string name_of(const RankPlan& plan) { return plan.name.empty() ? fmt::format("rank {}", plan.rank) : plan.name; }

}  // namespace tessera::launch

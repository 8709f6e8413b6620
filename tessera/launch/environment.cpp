#include "tessera/launch/environment.h"

#include <algorithm>

namespace tessera::launch {

Environment rank_variables(const RankPlace& place) {
  return {
      {"RANK", std::to_string(place.rank)},
      {"WORLD_SIZE", std::to_string(place.world_size)},
      {"LOCAL_RANK", std::to_string(place.local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
      {"LOCAL_SIZE", std::to_string(place.local_world_size)},
      {"CROSS_RANK", std::to_string(place.node_rank)},
      {"CROSS_SIZE", std::to_string(place.nodes)},
      {"MASTER_ADDR", place.master_addr},
      {"MASTER_PORT", std::to_string(place.master_port)},
  };
}

int threads_per_rank(int cores, int nproc) { return std::max(1, cores / nproc); }

std::vector<std::string> merge_environment(const std::vector<std::string>& inherited, const Environment& changes) {
  std::vector<std::string> merged;
  for (const std::string& entry : inherited) {
    if (!changes.contains(entry.substr(0, entry.find('=')))) merged.push_back(entry);
  }
  for (const auto& [name, value] : changes) merged.push_back(name + "=" + value);
  return merged;
}

}  // namespace tessera::launch

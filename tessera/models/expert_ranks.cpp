#include "tessera/models/expert_ranks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tessera/layout/mesh_shape.h"

namespace tessera::models {

std::function<void(layout::ParamSpec&)> keep_experts_of(Network& network, const nn::ExpertAxis& axis) {
  std::vector<std::string> prefixes = network.share_experts(axis);
  for (std::string& prefix : prefixes) prefix += ".";
  return [prefixes = std::move(prefixes), rank = axis.rank()](layout::ParamSpec& spec) {
    const auto is_below = [&](const std::string& prefix) { return spec.name.starts_with(prefix); };
    if (std::any_of(prefixes.begin(), prefixes.end(), is_below)) {
      spec.holders.push_back({layout::kExpertAxis, {rank}});
    }
  };
}

}  // namespace tessera::models

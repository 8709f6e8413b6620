#include "tessera/zero/data_groups.h"

#include "tessera/base/error.h"

namespace tessera::zero {
namespace {

// `place`: where in the mesh this rank is, for people.
void take_apart(DataGroups& groups, int inner_ranks, const std::string& place) {
  const int ranks = groups.shard->size(), own = groups.shard->rank();
  TESSERA_INVARIANT(inner_ranks > 0 && ranks % inner_ranks == 0);
  if (inner_ranks == ranks) return;
  std::vector<int> inner, outer;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank / inner_ranks == own / inner_ranks) inner.push_back(rank);
    if (rank % inner_ranks == own % inner_ranks) outer.push_back(rank);
  }
  groups.inner = groups.shard->subgroup(inner, "inner", place);
  groups.outer = groups.shard->subgroup(outer, "outer", place);
}

}  // namespace

DataGroups DataGroups::of(comm::Mesh& mesh, bool shards_anything, const std::vector<std::string>& in_parts,
                          int inner_ranks) {
  const auto group = [&](std::vector<std::string> axes) {
    for (const std::string& axis : in_parts) std::erase(axes, axis);
    return mesh.group(axes);
  };
  DataGroups groups;
  groups.all = group(mesh.shape().data_axes());
  groups.shard = shards_anything ? group({layout::kShardAxis, layout::kExpertAxis, layout::kContextAxis}) : groups.all;
  groups.replicate =
      group(shards_anything ? std::vector<std::string>{layout::kReplicateAxis} : std::vector<std::string>{});
  groups.parts = mesh.group(mesh.shape().model_axes());
  groups.inner = groups.shard;
  groups.outer = mesh.group({});
  if (inner_ranks == 0) return groups;
  for (const std::string& axis : in_parts) inner_ranks /= mesh.shape().size(axis);
  take_apart(groups, inner_ranks, mesh.shape().describe(mesh.rank()));
  return groups;
}

DataGroups DataGroups::with_channel(const std::string& name) const {
  return {all->with_channel(name),   shard->with_channel(name), replicate->with_channel(name),
          parts->with_channel(name), inner->with_channel(name), outer->with_channel(name)};
}

}  // namespace tessera::zero

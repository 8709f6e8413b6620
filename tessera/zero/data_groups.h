// The ranks that share a unit: who of them holds which part of its training state. A unit's parameters, or this rank's
// part of them over the mesh's model axes, are the same on all of these.
//
//   all         the ranks whose gradients make the mean: every data axis of the mesh
//   shard       … over which ZeRO shards training state: dp_shard and cp; all of them where nothing is sharded
//   replicate   … whose shards are the same: dp_replicate. Hybrid sharding (HSDP): stage 3 within a host, say, and
//               replicas across hosts, so that parameters are gathered within a host alone. Of one rank otherwise.
//
// And across them, `parts`: the ranks that hold the model's parts, which are the same data-parallel rank of theirs.
//
// A rank's number in `all` is that in `replicate` times shard's size plus that in `shard`.
#pragma once

#include <memory>
#include <string>

#include "tessera/comm/mesh.h"

namespace tessera::zero {

struct DataGroups {
  std::shared_ptr<comm::Group> all, shard, replicate, parts;

  static DataGroups of(comm::Mesh& mesh, bool shards_anything) {
    DataGroups groups;
    groups.all = mesh.data_group();
    groups.shard = shards_anything ? mesh.group({layout::kShardAxis, layout::kContextAxis}) : groups.all;
    groups.replicate =
        mesh.group(shards_anything ? std::vector<std::string>{layout::kReplicateAxis} : std::vector<std::string>{});
    groups.parts = mesh.group(mesh.shape().model_axes());
    return groups;
  }

  // The same ranks on a channel of their own: see comm::Group::with_channel.
  DataGroups with_channel(const std::string& name) const {
    return {all->with_channel(name), shard->with_channel(name), replicate->with_channel(name),
            parts->with_channel(name)};
  }
};

}  // namespace tessera::zero

// The ranks that share a unit: who of them holds which part of its training state. A unit's parameters, or this rank's
// part of them over the mesh's model axes, are the same on all of these.
//
//   all         the ranks whose gradients make the mean: every data axis of the mesh
//   shard       … over which ZeRO shards training state: dp_shard, ep and cp; all of them where nothing is sharded
//   replicate   … whose shards are the same: dp_replicate. Hybrid sharding (HSDP): stage 3 within a host, say, and
//               replicas across hosts, so that parameters are gathered within a host alone. Of one rank otherwise.
//
// And across them, `parts`: the ranks that hold the model's parts, which are the same data-parallel rank of theirs.
//
// A rank's number in `all` is that in `replicate` times shard's size plus that in `shard`.
//
// Of a unit of experts, which the ranks of the axis ep have different ones of, that axis is among none of the first
// three: its gradients are added up over fewer ranks, each of which has them for the tokens of a whole ep group.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/mesh.h"

namespace tessera::zero {

struct DataGroups {
  std::shared_ptr<comm::Group> all, shard, replicate, parts;

  // `in_parts`: data axes whose ranks have different parts of the unit's parameters (layout::data_axes_in_parts).
  static DataGroups of(comm::Mesh& mesh, bool shards_anything, const std::vector<std::string>& in_parts = {}) {
    const auto group = [&](std::vector<std::string> axes) {
      for (const std::string& axis : in_parts) std::erase(axes, axis);
      return mesh.group(axes);
    };
    DataGroups groups;
    groups.all = group(mesh.shape().data_axes());
    groups.shard =
        shards_anything ? group({layout::kShardAxis, layout::kExpertAxis, layout::kContextAxis}) : groups.all;
    groups.replicate =
        group(shards_anything ? std::vector<std::string>{layout::kReplicateAxis} : std::vector<std::string>{});
    groups.parts = mesh.group(mesh.shape().model_axes());
    return groups;
  }

  // The same ranks on a channel of their own: see comm::Group::with_channel.
  DataGroups with_channel(const std::string& name) const {
    return {all->with_channel(name), shard->with_channel(name), replicate->with_channel(name),
            parts->with_channel(name)};
  }
};

// Those of each unit of a model; on a channel of their own, where it has a name.
class UnitGroups {
 public:
  UnitGroups(std::shared_ptr<comm::Mesh> mesh, bool shards_anything, std::string channel = "")
      : mesh_(std::move(mesh)), shards_anything_(shards_anything), channel_(std::move(channel)) {}

  // Every rank asks in the same order.
  const DataGroups& of(const std::vector<std::string>& in_parts) {
    const auto found = groups_.find(in_parts);
    if (found != groups_.end()) return found->second;
    const DataGroups groups = DataGroups::of(*mesh_, shards_anything_, in_parts);
    return groups_.emplace(in_parts, channel_.empty() ? groups : groups.with_channel(channel_)).first->second;
  }

 private:
  std::shared_ptr<comm::Mesh> mesh_;
  bool shards_anything_;
  std::string channel_;
  std::map<std::vector<std::string>, DataGroups> groups_;
};

}  // namespace tessera::zero

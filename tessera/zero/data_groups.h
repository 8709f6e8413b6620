// The ranks that share a unit: who of them holds which part of its training state. A unit's parameters, or this rank's
// part of them over the mesh's model axes, are the same on all of these.
//
//   all         the ranks whose gradients make the mean: every data axis of the mesh
//   shard       … over which ZeRO shards training state: dp_shard, ep and cp; all of them where nothing is sharded
//   replicate   … whose shards are the same: dp_replicate. Hybrid sharding (HSDP): stage 3 within a host, say, and
//               replicas across hosts, so that parameters are gathered within a host alone. Of one rank otherwise.
//
// ZeRO++ takes `shard` apart into two levels, the ranks of a host, say, and hosts: rank s of it is rank s % inner's
// size of its `inner` and rank s / inner's size of its `outer`. Without levels `inner` is all of `shard`.
//
//   inner       consecutive ranks of `shard`, between which traffic is cheap
//   outer       those with the same place in theirs
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
  std::shared_ptr<comm::Group> all, shard, replicate, parts, inner, outer;

  // `in_parts`: data axes whose ranks have different parts of the unit's parameters (layout::data_axes_in_parts).
  // `inner_ranks`: of `inner`, those of other experts counted in: a divisor of shard's size, and a multiple of the axes
  // within it; 0: no levels.
  static DataGroups of(comm::Mesh& mesh, bool shards_anything, const std::vector<std::string>& in_parts = {},
                       int inner_ranks = 0);

  // The same ranks on a channel of their own: see comm::Group::with_channel.
  DataGroups with_channel(const std::string& name) const;
};

// Those of each unit of a model; on a channel of their own, where it has a name.
class UnitGroups {
 public:
  UnitGroups(std::shared_ptr<comm::Mesh> mesh, bool shards_anything, std::string channel = "", int inner_ranks = 0)
      : mesh_(std::move(mesh)),
        shards_anything_(shards_anything),
        channel_(std::move(channel)),
        inner_ranks_(inner_ranks) {}

  // Every rank asks in the same order.
  const DataGroups& of(const std::vector<std::string>& in_parts) {
    const auto found = groups_.find(in_parts);
    if (found != groups_.end()) return found->second;
    const DataGroups groups = DataGroups::of(*mesh_, shards_anything_, in_parts, inner_ranks_);
    return groups_.emplace(in_parts, channel_.empty() ? groups : groups.with_channel(channel_)).first->second;
  }

 private:
  std::shared_ptr<comm::Mesh> mesh_;
  bool shards_anything_;
  std::string channel_;
  int inner_ranks_;
  std::map<std::vector<std::string>, DataGroups> groups_;
};

}  // namespace tessera::zero

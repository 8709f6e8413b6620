// The world's ranks on named axes, and the groups that follow: of one axis, or of several taken together.
//
//   comm::Mesh mesh(world, layout::MeshShape({{"pp", 2}, {"dp_shard", 4}, {"tp", 2}}));
//   mesh.group({"tp"})                        this rank and its neighbour: the ranks that differ from it only in tp
//   mesh.group({"dp_replicate", "dp_shard"})  the ranks over which data is parallel
//
// A group is made the first time it is asked for, without communication. Errors of its collectives name the group and
// where in the mesh the rank is. Any rank may ask for any group at any time; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/layout/mesh_shape.h"

namespace tessera::comm {

class Mesh {
 public:
  // ErrorKind::kUsage where the shape is not one for so many ranks.
  Mesh(std::shared_ptr<Group> world, layout::MeshShape shape);

  // All ranks are data parallel.
  static std::shared_ptr<Mesh> data_parallel(std::shared_ptr<Group> world);

  // From what each rank alone knows: its own coordinate on each axis, e.g. from the groups of another framework.
  // Collective. Errors: as those of MeshShape, on every rank.
  static std::shared_ptr<Mesh> of_coordinates(std::shared_ptr<Group> world, const std::vector<std::string>& axes,
                                              const std::vector<int>& own);

  const layout::MeshShape& shape() const { return shape_; }
  const std::shared_ptr<Group>& world() const { return world_; }
  int rank() const { return world_->rank(); }
  int coordinate(const std::string& axis) const { return shape_.coordinate(rank(), axis); }

  // Of the axes that the mesh has among these; where they hold all of its ranks, the world itself.
  std::shared_ptr<Group> group(const std::vector<std::string>& axes);
  std::shared_ptr<Group> data_group() { return group(shape_.data_axes()); }    // the ranks that train on different data
  std::shared_ptr<Group> batch_group() { return group(shape_.batch_axes()); }  // … on different samples
  std::shared_ptr<Group> part_group() { return group(shape_.part_axes()); }    // the ranks whose parts make the model
  std::shared_ptr<Group> replica_group();  // the ranks that have the same part of every parameter

 private:
  std::shared_ptr<Group> world_;
  layout::MeshShape shape_;
  std::map<std::string, std::shared_ptr<Group>> groups_;  // by their axes, in the mesh's order
};

}  // namespace tessera::comm

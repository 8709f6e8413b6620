#include "tessera/layout/param_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/layout/box.h"
#include "tessera/layout/mesh_shape.h"

namespace tessera::layout {

Box local_box(const ParamSpec& spec, const MeshShape& mesh, int rank) {
  Box box = Box::whole(spec.shape);
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    throw Error(ErrorKind::kUsage, {what, fmt::format("the parameter '{}'", spec.name), fix});
  };
  for (const Shard& shard : spec.shards) {
    if (!mesh.has(shard.axis)) {
      refuse(fmt::format("it is sharded over the axis '{}', which the mesh does not have", shard.axis),
             "make the mesh with that axis, of size 1 if need be");
    }
    const auto dim = static_cast<size_t>(shard.dim);
    if (shard.dim < 0 || dim >= spec.shape.size()) {
      refuse(fmt::format("it has no dimension {} to shard over '{}'", shard.dim, shard.axis),
             "count its dimensions from 0");
    }
    const int64_t ranks = mesh.size(shard.axis);
    const int64_t each = (box.extent[dim] + ranks - 1) / ranks;
    if (each * (ranks - 1) >= box.extent[dim]) {
      refuse(fmt::format("dimension {}, of {} elements, leaves nothing for some of the {} ranks of '{}'", shard.dim,
                         box.extent[dim], ranks, shard.axis),
             fmt::format("use fewer ranks on '{}'", shard.axis));
    }
    const int64_t begin = each * mesh.coordinate(rank, shard.axis);
    const int64_t end = std::min(begin + each, box.extent[dim]);
    box.offset[dim] += begin;
    box.extent[dim] = end - begin;
  }
  return box;
}

bool is_first_holder(const ParamSpec& spec, const MeshShape& mesh, int rank) {
  for (const std::string& axis : mesh.model_axes()) {
    const bool sharded =
        std::any_of(spec.shards.begin(), spec.shards.end(), [&](const Shard& shard) { return shard.axis == axis; });
    if (!sharded && mesh.coordinate(rank, axis) != 0) return false;
  }
  return true;
}

}  // namespace tessera::layout

#include "tessera/layout/param_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/layout/box.h"
#include "tessera/layout/mesh_shape.h"

namespace tessera::layout {
namespace {

// One for each of so many ranks, each with elements, all within the dimension and leaving none of it out.
bool are_parts_of(std::vector<Range> parts, int64_t size, int64_t ranks) {
  if (static_cast<int64_t>(parts.size()) != ranks) return false;
  std::sort(parts.begin(), parts.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  int64_t end = 0;
  Range before{};
  for (const Range& part : parts) {
    if (part.numel() <= 0) return false;
    if (part == before) continue;
    if (part.begin != end) return false;
    end = part.end;
    before = part;
  }
  return end == size;
}

// Whether a rank at an earlier place of the shard's axis holds the same part.
bool is_repeated(const Shard& shard, int place) {
  if (shard.parts.empty()) return false;
  const auto own = shard.parts.begin() + place;
  return std::find(shard.parts.begin(), own, *own) != own;
}

}  // namespace

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
    const int place = mesh.coordinate(rank, shard.axis);
    if (!shard.parts.empty()) {
      if (!are_parts_of(shard.parts, box.extent[dim], ranks)) {
        refuse(fmt::format("the parts of dimension {}, of {} elements, do not make it up over the {} ranks of '{}'",
                           shard.dim, box.extent[dim], ranks, shard.axis),
               "give each rank a range of its own, or the same as another's, and leave none out");
      }
      const Range own = shard.parts[static_cast<size_t>(place)];
      box.offset[dim] += own.begin;
      box.extent[dim] = own.numel();
      continue;
    }
    const int64_t each = (box.extent[dim] + ranks - 1) / ranks;
    if (each * (ranks - 1) >= box.extent[dim]) {
      refuse(fmt::format("dimension {}, of {} elements, leaves nothing for some of the {} ranks of '{}'", shard.dim,
                         box.extent[dim], ranks, shard.axis),
             fmt::format("use fewer ranks on '{}'", shard.axis));
    }
    const int64_t begin = each * place;
    const int64_t end = std::min(begin + each, box.extent[dim]);
    box.offset[dim] += begin;
    box.extent[dim] = end - begin;
  }
  return box;
}

bool is_first_holder(const ParamSpec& spec, const MeshShape& mesh, int rank) {
  for (const std::string& axis : mesh.model_axes()) {
    const int place = mesh.coordinate(rank, axis);
    const auto shard =
        std::find_if(spec.shards.begin(), spec.shards.end(), [&](const Shard& each) { return each.axis == axis; });
    if (shard == spec.shards.end() ? place != 0 : is_repeated(*shard, place)) return false;
  }
  return true;
}

}  // namespace tessera::layout

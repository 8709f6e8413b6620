#include "tessera/layout/param_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/layout/box.h"
#include "tessera/layout/mesh_shape.h"

namespace tessera::layout {
namespace {

int64_t parts_of(const Shard& shard) { return static_cast<int64_t>(shard.bounds.size()) - 1; }

// From 0 to the dimension's size, each part with elements, and as many ranks for each.
bool are_bounds_of(const Shard& shard, int64_t size, int64_t ranks) {
  const std::vector<int64_t>& bounds = shard.bounds;
  const bool rises = std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) == bounds.end();
  return rises && parts_of(shard) > 0 && bounds.front() == 0 && bounds.back() == size && ranks % parts_of(shard) == 0;
}

// Whether a rank at an earlier place of the shard's axis holds the same part.
bool is_repeated(const Shard& shard, int ranks, int place) {
  return !shard.bounds.empty() && place % (ranks / parts_of(shard)) != 0;
}

// For each dimension of `shape`, how many of `folded` make it up; nothing where they do not.
std::optional<std::vector<size_t>> folds_of(const std::vector<int64_t>& folded, const std::vector<int64_t>& shape) {
  std::vector<size_t> folds;
  size_t next = 0;
  for (const int64_t size : shape) {
    const size_t first = next;
    int64_t product = 1;
    while (next < folded.size() && (next == first || product < size)) {
      if (folded[next] < 1 || __builtin_mul_overflow(product, folded[next++], &product)) return std::nullopt;
    }
    if (product != size || next == first) return std::nullopt;
    folds.push_back(next - first);
  }
  if (next != folded.size()) return std::nullopt;
  return folds;
}

}  // namespace

bool is_fold(const std::vector<int64_t>& folded, const std::vector<int64_t>& shape) {
  return folds_of(folded, shape).has_value();
}

std::vector<int64_t> shape_of_part(const ParamSpec& spec, const Box& box) {
  if (spec.folded.empty()) return box.extent;
  const auto folds = folds_of(spec.folded, spec.shape);
  TESSERA_INVARIANT(folds);
  std::vector<int64_t> shape;
  auto next = box.extent.begin();
  for (const size_t fold : *folds) {
    const auto end = next + static_cast<std::ptrdiff_t>(fold);
    shape.push_back(std::accumulate(next, end, int64_t{1}, std::multiplies<>()));
    next = end;
  }
  return shape;
}

Box local_box(const ParamSpec& spec, const MeshShape& mesh, int rank) {
  const std::vector<int64_t>& shape = spec.cut_shape();
  Box box = Box::whole(shape);
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    throw Error(ErrorKind::kUsage, {what, fmt::format("the parameter '{}'", spec.name), fix});
  };
  if (!spec.folded.empty() && !is_fold(spec.folded, spec.shape)) {
    refuse(
        fmt::format("[{}] is not a fold of its shape, [{}]", fmt::join(spec.folded, ", "), fmt::join(spec.shape, ", ")),
        "give for each dimension the sizes of which it is the product");
  }
  for (const Shard& shard : spec.shards) {
    if (!mesh.has(shard.axis)) {
      refuse(fmt::format("it is sharded over the axis '{}', which the mesh does not have", shard.axis),
             "make the mesh with that axis, of size 1 if need be");
    }
    const auto dim = static_cast<size_t>(shard.dim);
    if (shard.dim < 0 || dim >= shape.size()) {
      refuse(fmt::format("it has no dimension {} to shard over '{}'", shard.dim, shard.axis),
             "count its dimensions from 0");
    }
    const int64_t ranks = mesh.size(shard.axis);
    const int place = mesh.coordinate(rank, shard.axis);
    if (!shard.bounds.empty()) {
      if (!are_bounds_of(shard, box.extent[dim], ranks)) {
        refuse(fmt::format("the parts of dimension {}, of {} elements, do not make it up over the {} ranks of '{}'",
                           shard.dim, box.extent[dim], ranks, shard.axis),
               "give bounds that rise from 0 to its size, and a number of parts that divides that of the ranks");
      }
      const auto part = static_cast<size_t>(place / (ranks / parts_of(shard)));
      box.offset[dim] += shard.bounds[part];
      box.extent[dim] = shard.bounds[part + 1] - shard.bounds[part];
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

std::vector<std::string> data_axes_in_parts(const ParamSpec& spec, const MeshShape& mesh) {
  std::vector<std::string> axes;
  const auto is_over = [](const std::string& axis) { return [&axis](const auto& each) { return each.axis == axis; }; };
  for (const std::string& axis : mesh.data_axes()) {
    const bool in_parts = std::any_of(spec.shards.begin(), spec.shards.end(), is_over(axis)) ||
                          std::any_of(spec.holders.begin(), spec.holders.end(), is_over(axis));
    if (in_parts && mesh.size(axis) > 1) axes.push_back(axis);
  }
  return axes;
}

bool is_first_holder(const ParamSpec& spec, const MeshShape& mesh, int rank) {
  for (const std::string& axis : mesh.model_axes()) {
    const int place = mesh.coordinate(rank, axis);
    const auto holders =
        std::find_if(spec.holders.begin(), spec.holders.end(), [&](const Holders& each) { return each.axis == axis; });
    if (holders != spec.holders.end()) {
      if (place != holders->coordinates.front()) return false;
      continue;
    }
    const auto shard =
        std::find_if(spec.shards.begin(), spec.shards.end(), [&](const Shard& each) { return each.axis == axis; });
    if (shard == spec.shards.end() ? place != 0 : is_repeated(*shard, mesh.size(axis), place)) return false;
  }
  return true;
}

}  // namespace tessera::layout

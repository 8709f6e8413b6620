#include "tessera/layout/mesh_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::layout {
namespace {

std::string product_text(const std::vector<Axis>& axes) {
  std::vector<std::string> factors;
  for (const Axis& axis : axes) {
    factors.push_back(axis.size == 0 ? axis.name : fmt::format("{} {}", axis.name, axis.size));
  }
  return fmt::format("{}", fmt::join(factors, " × "));
}

[[noreturn]] void refuse(const std::string& what, const std::string& fix, const std::string& where = "the mesh") {
  throw Error(ErrorKind::kUsage, {what, where, fix});
}

std::vector<std::vector<int>> row_by_row(const std::vector<Axis>& axes) {
  int64_t ranks = 1;
  for (const Axis& axis : axes) {
    if (axis.size < 1) refuse(fmt::format("axis {} has size {}", axis.name, axis.size), "give each axis at least 1");
    ranks *= axis.size;
    if (ranks > INT32_MAX) refuse(fmt::format("{} are too many ranks", product_text(axes)), "use smaller axes");
  }
  std::vector<std::vector<int>> coordinates(static_cast<size_t>(ranks), std::vector<int>(axes.size()));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t left = rank;
    for (size_t axis = axes.size(); axis-- > 0;) {
      coordinates[static_cast<size_t>(rank)][axis] = static_cast<int>(left % axes[axis].size);
      left /= axes[axis].size;
    }
  }
  return coordinates;
}

}  // namespace

bool is_data_axis(const std::string& name) {
  return name == kReplicateAxis || name == kShardAxis || name == kExpertAxis || name == kContextAxis;
}

MeshShape::MeshShape(std::vector<Axis> axes) : MeshShape(axes, row_by_row(axes)) {}

MeshShape::MeshShape(std::vector<Axis> axes, std::vector<std::vector<int>> coordinates)
    : axes_(std::move(axes)), coordinates_(std::move(coordinates)) {
  std::set<std::string> names;
  size_t places = 1;
  for (const Axis& axis : axes_) {
    if (!names.insert(axis.name).second) refuse(fmt::format("axis {} comes twice", axis.name), "name each axis once");
    places *= static_cast<size_t>(axis.size);
  }
  const std::set<std::vector<int>> distinct(coordinates_.begin(), coordinates_.end());
  bool inside = true;
  for (const std::vector<int>& place : coordinates_) {
    inside = inside && place.size() == axes_.size();
    for (size_t axis = 0; inside && axis < axes_.size(); ++axis) {
      inside = place[axis] >= 0 && place[axis] < axes_[axis].size;
    }
  }
  if (inside && distinct.size() == places && coordinates_.size() == places) return;
  refuse(fmt::format("the places of {} ranks do not make the mesh {}", coordinates_.size(), product_text(axes_)),
         "each rank belongs to one group of each axis, and groups of one axis have one size");
}

std::string MeshShape::product() const { return product_text(axes_); }

MeshShape MeshShape::of_world(int ranks, std::vector<Axis> axes, const std::string& where) {
  int64_t taken = 1;
  Axis* rest = nullptr;
  for (Axis& axis : axes) {
    if (axis.size < 0) refuse(fmt::format("axis {} has size {}", axis.name, axis.size), "give each axis at least 1");
    if (axis.size > 0) taken = std::min<int64_t>(taken * axis.size, INT32_MAX);
    if (axis.size > 0) continue;
    if (rest != nullptr) {
      refuse(fmt::format("axes {} and {} both take what is left", rest->name, axis.name), "give one of them a size");
    }
    rest = &axis;
  }
  const bool factors = rest == nullptr ? taken == ranks : ranks % taken == 0;
  if (!factors) {
    const int64_t fewer = rest == nullptr ? taken : ranks / taken * taken;
    const int64_t more = fewer + (rest == nullptr ? 0 : taken);
    const std::string nearest =
        fewer == 0 || fewer == more ? fmt::format("{} ranks", more) : fmt::format("{} or {} ranks", fewer, more);
    std::string fix = "use " + nearest;
    for (const Axis& axis : axes) {  // or one axis smaller
      if (axis.size < 2) continue;
      for (int size = axis.size - 1; size > 0; --size) {
        const int64_t others = taken / axis.size * size;
        if (rest == nullptr ? others != ranks : ranks % others != 0) continue;
        fix += fmt::format(", or {} {}", axis.name, size);
        break;
      }
    }
    refuse(fmt::format("{} {} not factor into {}", count_of(ranks, "rank"), ranks == 1 ? "does" : "do",
                       product_text(axes)),
           fix, where);
  }
  if (rest != nullptr) rest->size = static_cast<int>(ranks / taken);
  return MeshShape(std::move(axes));
}

bool MeshShape::has(const std::string& axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const Axis& each) { return each.name == axis; });
}

int MeshShape::size(const std::string& axis) const {
  for (const Axis& each : axes_) {
    if (each.name == axis) return each.size;
  }
  return 1;
}

int MeshShape::coordinate(int rank, const std::string& axis) const {
  for (size_t index = 0; index < axes_.size(); ++index) {
    if (axes_[index].name == axis) return coordinates_.at(static_cast<size_t>(rank))[index];
  }
  return 0;
}

std::vector<int> MeshShape::members(int rank, const std::vector<std::string>& axes) const {
  const std::vector<int>& own = coordinates_.at(static_cast<size_t>(rank));
  std::vector<std::pair<std::vector<int>, int>> found;  // coordinates, rank
  for (int other = 0; other < ranks(); ++other) {
    const std::vector<int>& place = coordinates_[static_cast<size_t>(other)];
    bool shares = true;
    for (size_t index = 0; shares && index < axes_.size(); ++index) {
      shares = place[index] == own[index] || std::find(axes.begin(), axes.end(), axes_[index].name) != axes.end();
    }
    if (shares) found.emplace_back(place, other);
  }
  std::sort(found.begin(), found.end());
  std::vector<int> members;
  for (const auto& [place, other] : found) members.push_back(other);
  return members;
}

std::vector<std::string> MeshShape::data_axes() const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_) {
    if (is_data_axis(axis.name)) names.push_back(axis.name);
  }
  return names;
}

std::vector<std::string> MeshShape::batch_axes() const {
  std::vector<std::string> names = data_axes();
  std::erase(names, kContextAxis);
  return names;
}

std::vector<std::string> MeshShape::model_axes() const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_) {
    if (!is_data_axis(axis.name)) names.push_back(axis.name);
  }
  return names;
}

std::vector<std::string> MeshShape::part_axes() const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_) {
    if (!is_data_axis(axis.name) || axis.name == kExpertAxis) names.push_back(axis.name);
  }
  return names;
}

int MeshShape::parts() const {
  int parts = 1;
  for (const std::string& axis : model_axes()) parts *= size(axis);
  return parts;
}

std::string MeshShape::describe(int rank) const {
  std::vector<std::string> places;
  for (const Axis& axis : axes_) {
    if (axis.size > 1) places.push_back(fmt::format("{} {}", axis.name, coordinate(rank, axis.name)));
  }
  const bool number_says_all = places.size() < 2 && !holds_parts() && size(kContextAxis) == 1;
  return number_says_all ? "" : fmt::format("{}", fmt::join(places, ", "));
}

}  // namespace tessera::layout

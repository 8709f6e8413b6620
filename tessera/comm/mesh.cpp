#include "tessera/comm/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "tessera/base/error.h"

namespace tessera::comm {

Mesh::Mesh(std::shared_ptr<Group> world, layout::MeshShape shape) : world_(std::move(world)), shape_(std::move(shape)) {
  if (shape_.ranks() != world_->size()) {
    throw Error(ErrorKind::kUsage,
                {fmt::format("a mesh of {} ranks does not fit a world of {}", shape_.ranks(), world_->size()),
                 "the mesh", "make the sizes of its axes multiply to the number of ranks"});
  }
  if (shape_.describe(/*rank=*/0).empty()) return;  // its number says all of a rank
  std::vector<std::string> places;
  for (int rank = 0; rank < shape_.ranks(); ++rank) places.push_back(shape_.describe(rank));
  world_->name_places(std::move(places));
}

std::shared_ptr<Mesh> Mesh::data_parallel(std::shared_ptr<Group> world) {
  const int ranks = world->size();
  return std::make_shared<Mesh>(std::move(world), layout::MeshShape::of_data_parallel(ranks));
}

std::shared_ptr<Mesh> Mesh::of_coordinates(std::shared_ptr<Group> world, const std::vector<std::string>& axes,
                                           const std::vector<int>& own) {
  TESSERA_INVARIANT(axes.size() == own.size());
  const std::string text = fmt::format("{} {}", fmt::join(axes, " "), fmt::join(own, " "));
  const std::vector<std::string> texts = world->exchange_texts(text, "coordinates in the mesh");
  std::vector<layout::Axis> sizes;
  for (const std::string& axis : axes) sizes.push_back({axis, 1});
  std::vector<std::vector<int>> coordinates;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream words(texts[rank]);
    for (const std::string& axis : axes) {
      std::string name;
      words >> name;
      if (name == axis) continue;
      throw Error(ErrorKind::kUsage, {fmt::format("rank {} names other axes: '{}'", rank, texts[rank]), "the mesh",
                                      "give every rank the same axes in the same order"});
    }
    std::vector<int>& place = coordinates.emplace_back(axes.size());
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      words >> place[axis];
      sizes[axis].size = std::max(sizes[axis].size, place[axis] + 1);
    }
  }
  return std::make_shared<Mesh>(std::move(world), layout::MeshShape(std::move(sizes), std::move(coordinates)));
}

std::shared_ptr<Group> Mesh::replica_group() {
  std::vector<std::string> axes = shape_.data_axes();
  std::erase(axes, layout::kExpertAxis);
  return group(axes);
}

std::shared_ptr<Group> Mesh::group(const std::vector<std::string>& axes) {
  std::vector<std::string> own;  // in the mesh's order, so that one set of axes is one group
  for (const layout::Axis& axis : shape_.axes()) {
    if (std::find(axes.begin(), axes.end(), axis.name) != axes.end()) own.push_back(axis.name);
  }
  const std::string name = fmt::format("{}", fmt::join(own, "+"));
  std::shared_ptr<Group>& group = groups_[name];
  if (group) return group;
  const std::vector<int> members = shape_.members(rank(), own);
  const bool all = static_cast<int>(members.size()) == world_->size() && std::is_sorted(members.begin(), members.end());
  group = all ? world_ : world_->subgroup(members, name, shape_.describe(rank()));
  return group;
}

}  // namespace tessera::comm

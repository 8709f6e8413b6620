#include "tessera/layout/box.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tessera/base/error.h"

namespace tessera::layout {
namespace {

std::vector<int64_t> strides_of(const std::vector<int64_t>& extent) {
  std::vector<int64_t> strides(extent.size(), 1);
  for (size_t dim = extent.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * extent[dim];
  return strides;
}

// The flat index in `box` of the element at `global`.
int64_t index_in(const Box& box, const std::vector<int64_t>& strides, const std::vector<int64_t>& global) {
  int64_t index = 0;
  for (size_t dim = 0; dim < global.size(); ++dim) index += (global[dim] - box.offset[dim]) * strides[dim];
  return index;
}

std::string describe(const Box& box) {
  std::vector<std::string> ranges;
  for (size_t dim = 0; dim < box.offset.size(); ++dim) {
    const __int128 end = static_cast<__int128>(box.offset[dim]) + box.extent[dim];  // of a box that may make no sense
    ranges.push_back(fmt::format("{}:{}", box.offset[dim], end));
  }
  return fmt::format("[{}]", fmt::join(ranges, ", "));
}

// Calls visit(global index of the first element, elements) for each stretch of the intersection that is contiguous in
// both boxes: the dimensions from `inner` on are whole in both.
template <class Visit>
void for_each_stretch(const Box& common, size_t inner, const Visit& visit) {
  int64_t numel = 1;
  for (size_t dim = inner; dim < common.extent.size(); ++dim) numel *= common.extent[dim];
  std::vector<int64_t> at = common.offset;
  while (true) {
    visit(at, numel);
    size_t dim = inner;
    while (dim > 0) {
      --dim;
      if (++at[dim] < common.offset[dim] + common.extent[dim]) break;
      at[dim] = common.offset[dim];
      if (dim == 0) return;
    }
    if (inner == 0) return;
  }
}

}  // namespace

int64_t Box::numel() const {
  int64_t product = 1;
  for (const int64_t size : extent) product *= size;
  return product;
}

bool lies_in(const Box& box, const std::vector<int64_t>& shape) {
  if (box.offset.size() != shape.size() || box.extent.size() != shape.size()) return false;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.offset[dim] < 0 || box.extent[dim] < 1 || box.extent[dim] > shape[dim]) return false;
    if (box.offset[dim] > shape[dim] - box.extent[dim]) return false;
  }
  return true;
}

void for_each_common_run(const BoxRun& a, const BoxRun& b, const std::function<void(const CommonRun&)>& visit) {
  const size_t dims = a.box.offset.size();
  TESSERA_INVARIANT(b.box.offset.size() == dims);
  Box common;
  for (size_t dim = 0; dim < dims; ++dim) {
    const int64_t begin = std::max(a.box.offset[dim], b.box.offset[dim]);
    const int64_t end = std::min(a.box.offset[dim] + a.box.extent[dim], b.box.offset[dim] + b.box.extent[dim]);
    if (begin >= end) return;
    common.offset.push_back(begin);
    common.extent.push_back(end - begin);
  }
  // Stretches reach over a dimension as long as all dimensions within it are whole in both boxes.
  size_t inner = dims;
  while (inner > 0) {
    --inner;
    if (common.extent[inner] != a.box.extent[inner] || common.extent[inner] != b.box.extent[inner]) break;
  }
  const std::vector<int64_t> strides_a = strides_of(a.box.extent), strides_b = strides_of(b.box.extent);
  for_each_stretch(common, inner, [&](const std::vector<int64_t>& global, int64_t numel) {
    const int64_t in_a = index_in(a.box, strides_a, global), in_b = index_in(b.box, strides_b, global);
    const int64_t skipped = std::max({int64_t{0}, a.run.begin - in_a, b.run.begin - in_b});
    const int64_t end = std::min({numel, a.run.end - in_a, b.run.end - in_b});
    if (skipped < end) visit({in_a + skipped, in_b + skipped, end - skipped});
  });
}

std::string why_not_covered(const std::vector<int64_t>& shape, const std::vector<BoxRun>& runs) {
  struct Less {
    bool operator()(const Box& a, const Box& b) const {
      return std::tie(a.offset, a.extent) < std::tie(b.offset, b.extent);
    }
  };
  std::map<Box, std::vector<Range>, Less> by_box;
  std::vector<std::set<std::pair<int64_t, int64_t>>> cuts(shape.size());  // offset and extent, of each dimension
  for (const BoxRun& each : runs) {
    if (!lies_in(each.box, shape)) return fmt::format("the box {} is not in the tensor", describe(each.box));
    by_box[each.box].push_back(each.run);
    for (size_t dim = 0; dim < shape.size(); ++dim) cuts[dim].emplace(each.box.offset[dim], each.box.extent[dim]);
  }
  uint64_t boxes = 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    int64_t covered = 0;
    for (const auto& [offset, extent] : cuts[dim]) {
      if (offset != covered) return fmt::format("dimension {} is not covered once at {}", dim, covered);
      covered += extent;
    }
    if (covered != shape[dim]) return fmt::format("dimension {} is covered up to {} of {}", dim, covered, shape[dim]);
    boxes *= cuts[dim].size();
    if (boxes > runs.size()) break;  // before it can overflow: there are fewer
  }
  if (boxes != by_box.size()) return fmt::format("there are {} of {} boxes", by_box.size(), boxes);
  for (auto& [box, ranges] : by_box) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    int64_t covered = 0;
    for (const Range& range : ranges) {
      if (range.begin != covered || range.end <= range.begin) {
        return fmt::format("the pieces of {} do not follow each other at element {}", describe(box), covered);
      }
      covered = range.end;
    }
    if (covered != box.numel()) {
      return fmt::format("the pieces of {} hold {} of its {} elements", describe(box), covered, box.numel());
    }
  }
  return "";
}

}  // namespace tessera::layout

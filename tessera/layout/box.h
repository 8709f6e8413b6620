// Boxes of a global tensor, and which of their elements two runs have in common: how a checkpoint that one mesh wrote
// is read by any other.
//
// A rank's local part of a parameter is a box of the global tensor, in row-major order of its own. ZeRO cuts that, as a
// flat array, into runs. So what one rank holds is a BoxRun: a run of the flattened box, whatever the mesh. All in
// elements.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/layout/range.h"

namespace tessera::layout {

// One size a dimension of the global tensor; a scalar has none, and one element.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> extent;

  static Box whole(const std::vector<int64_t>& shape) { return {std::vector<int64_t>(shape.size(), 0), shape}; }
  int64_t numel() const;
  bool operator==(const Box&) const = default;
};

// Whether the box lies in a tensor of this shape, and has elements. Safe for numbers from anywhere: nothing overflows.
bool lies_in(const Box& box, const std::vector<int64_t>& shape);

struct BoxRun {
  Box box;
  Range run;  // of the flattened box
};

// Elements that two runs have in common, one after the other in both.
struct CommonRun {
  int64_t first_in_a = 0;  // from the beginning of a's box
  int64_t first_in_b = 0;  // … of b's
  int64_t numel = 0;
};

// Calls `visit` for each, in a's order, as long as possible: one where both boxes are the same, one a row of their
// intersection where they differ in columns. Both boxes have the same number of dimensions.
void for_each_common_run(const BoxRun& a, const BoxRun& b, const std::function<void(const CommonRun&)>& visit);

// Whether the runs hold each element of a tensor of this shape exactly once: their boxes form a grid over it, and the
// runs of each box follow each other. Empty if so, else what is wrong. In time n log n of the runs, in any order.
std::string why_not_covered(const std::vector<int64_t>& shape, const std::vector<BoxRun>& runs);

}  // namespace tessera::layout

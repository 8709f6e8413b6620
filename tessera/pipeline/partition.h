// Which layers of a model a stage has.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::pipeline {

// Bounds of so many consecutive parts of a list of weights: part p has [bounds[p], bounds[p + 1]), at least one of
// them, and the heaviest part is as light as it can be; of several such ways, the one whose first parts are longest.
// At least as many weights as parts; none is negative.
std::vector<int64_t> balanced_bounds(const std::vector<double>& weights, int parts);

}  // namespace tessera::pipeline

// Which consecutive items each part gets: tiles of a layer's features, elements of a tensor, layers of a pipeline's
// stages. Results are bounds: part p holds the items [bounds[p], bounds[p + 1]). They agree with DeepSpeed's, since
// they decide what its checkpoints hold. Arithmetic only.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::layout {

// Parts of the same size; where that does not divide, the first ones have one more (DeepSpeed's partition_uniform).
std::vector<int64_t> uniform_bounds(int64_t items, int64_t parts);

// Parts whose heaviest and lightest differ least (DeepSpeed's partition_balanced); of equals, those whose last parts
// begin latest. Cost: parts * items^2.
std::vector<int64_t> balanced_bounds(const std::vector<double>& weights, int64_t parts);

}  // namespace tessera::layout

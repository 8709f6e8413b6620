#include "tessera/data/collator.h"

#include <functional>
#include <numeric>
#include <utility>

namespace tessera::data {

std::vector<int64_t>& Batch::add(const std::string& name, std::vector<int64_t> shape, int64_t value) {
  const int64_t numel = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  Array& array = arrays[name];
  array = {.shape = std::move(shape), .values = std::vector<int64_t>(static_cast<size_t>(numel), value)};
  return array.values;
}

}  // namespace tessera::data

#include "tessera/pipeline/partition.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::pipeline {
namespace {

// Each part as long as it may be, but so that one is left for each that follows. Empty where more parts are needed.
std::vector<int64_t> filled(const std::vector<double>& sums, int parts, double most) {
  const auto count = static_cast<int64_t>(sums.size()) - 1;
  std::vector<int64_t> bounds{0};
  for (int part = 1; part <= parts; ++part) {
    const int64_t begin = bounds.back(), last = count - (parts - part);
    int64_t end = begin;
    const auto weight = [&](int64_t to) { return sums[static_cast<size_t>(to)] - sums[static_cast<size_t>(begin)]; };
    while (end < last && weight(end + 1) <= most) ++end;
    if (end == begin) return {};
    bounds.push_back(end);
  }
  return bounds.back() == count ? bounds : std::vector<int64_t>();
}

}  // namespace

std::vector<int64_t> balanced_bounds(const std::vector<double>& weights, int parts) {
  TESSERA_INVARIANT(parts >= 1 && weights.size() >= static_cast<size_t>(parts));
  std::vector<double> sums{0};
  for (const double weight : weights) sums.push_back(sums.back() + weight);
  // The heaviest part's weight is that of some run of them.
  std::vector<double> candidates;
  for (size_t begin = 0; begin < weights.size(); ++begin) {
    for (size_t end = begin + 1; end <= weights.size(); ++end) candidates.push_back(sums[end] - sums[begin]);
  }
  std::sort(candidates.begin(), candidates.end());
  const auto lightest = std::partition_point(candidates.begin(), candidates.end(),
                                             [&](double most) { return filled(sums, parts, most).empty(); });
  TESSERA_INVARIANT(lightest != candidates.end());
  return filled(sums, parts, *lightest);
}

}  // namespace tessera::pipeline

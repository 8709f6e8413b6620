#include "tessera/layout/consecutive_parts.h"

#include <algorithm>

namespace tessera::layout {
namespace {

struct Extremes {
  double heaviest;
  double lightest;

  double difference() const { return heaviest - lightest; }
};

std::vector<double> sums_of_prefixes(const std::vector<double>& weights) {
  std::vector<double> sums{0};
  for (const double weight : weights) sums.push_back(sums.back() + weight);
  return sums;
}

}  // namespace

std::vector<int64_t> uniform_bounds(int64_t items, int64_t parts) {
  std::vector<int64_t> bounds;
  for (int64_t part = 0; part <= parts; ++part) {
    bounds.push_back(part * (items / parts) + std::min(part, items % parts));
  }
  return bounds;
}

// Dynamic programming over prefixes: of the ways to cut the first i items into p parts, the best one is kept.
std::vector<int64_t> balanced_bounds(const std::vector<double>& weights, int64_t parts) {
  const auto count = static_cast<int64_t>(weights.size());
  if (count <= parts) return uniform_bounds(count, parts);
  const std::vector<double> sums = sums_of_prefixes(weights);
  std::vector<Extremes> kept;  // of each prefix, cut into the parts so far
  for (const double sum : sums) kept.push_back({sum, sum});
  std::vector<std::vector<int64_t>> begins;  // [p - 2][i]: where the last of p parts of the first i items begins
  for (int64_t made = 2; made <= parts; ++made) {
    std::vector<Extremes> extended(kept.size());
    std::vector<int64_t>& begin_of = begins.emplace_back(kept.size());
    for (int64_t end = made; end <= count; ++end) {
      for (int64_t begin = made - 1; begin < end; ++begin) {
        const double weight = sums[end] - sums[begin];
        const Extremes cut{std::max(kept[begin].heaviest, weight), std::min(kept[begin].lightest, weight)};
        if (begin > made - 1 && cut.difference() > extended[end].difference()) continue;
        extended[end] = cut;
        begin_of[end] = begin;
      }
    }
    kept = std::move(extended);
  }
  std::vector<int64_t> bounds{count};
  for (auto begin_of = begins.rbegin(); begin_of != begins.rend(); ++begin_of) {
    bounds.push_back((*begin_of)[bounds.back()]);
  }
  bounds.push_back(0);
  std::reverse(bounds.begin(), bounds.end());
  return bounds;
}

}  // namespace tessera::layout

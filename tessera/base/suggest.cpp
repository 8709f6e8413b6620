#include "tessera/base/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace tessera {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

// Optimal string alignment distance: Damerau-Levenshtein in which no part is edited twice.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + replace});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view given, std::span<const std::string> candidates) {
  const std::string wanted = lower(given);
  const std::string* best = nullptr;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(wanted, lower(candidate));
    if (best == nullptr || distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  if (best == nullptr) return std::nullopt;
  const size_t allowed = std::max<size_t>(2, std::max(wanted.size(), best->size()) / 3);
  if (best_distance > allowed) return std::nullopt;
  return *best;
}

void throw_unknown_name(const UnknownName& unknown, std::span<const std::string> known) {
  const auto nearest = nearest_name(unknown.name, known);
  throw Error(unknown.error_kind, {fmt::format("there is no {} '{}'", unknown.kind, unknown.name), unknown.where,
                                   (nearest ? fmt::format("did you mean '{}'? ", *nearest) : std::string()) +
                                       fmt::format("known: {}", fmt::join(known, ", "))});
}

}  // namespace tessera

#include "tessera/data/packing.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace tessera::data {
namespace {

// Documents as pieces of at most a row each.
std::vector<PackedPart> pieces(std::span<const int64_t> lengths, int64_t row_length) {
  std::vector<PackedPart> all;
  for (size_t document = 0; document < lengths.size(); ++document) {
    for (int64_t first = 0; first < lengths[document]; first += row_length) {
      all.push_back({document, first, std::min(row_length, lengths[document] - first)});
    }
  }
  return all;
}

std::vector<PackedRow> filled(std::span<const int64_t> lengths, int64_t row_length) {
  std::vector<PackedRow> rows;
  int64_t room = 0;
  for (size_t document = 0; document < lengths.size(); ++document) {
    for (int64_t first = 0; first < lengths[document];) {
      if (room == 0) {
        rows.emplace_back();
        room = row_length;
      }
      const int64_t count = std::min(room, lengths[document] - first);
      rows.back().push_back({document, first, count});
      first += count;
      room -= count;
    }
  }
  return rows;
}

std::vector<PackedRow> fitted(std::vector<PackedPart> parts, int64_t row_length) {
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.count > b.count; });
  std::vector<PackedRow> rows;
  std::multimap<int64_t, size_t> by_room;  // rows that are not full
  for (const PackedPart& part : parts) {
    const auto least = by_room.lower_bound(part.count);
    size_t row = rows.size();
    int64_t room = row_length;
    if (least == by_room.end()) {
      rows.emplace_back();
    } else {
      std::tie(room, row) = *least;
      by_room.erase(least);
    }
    rows[row].push_back(part);
    if (room > part.count) by_room.emplace(room - part.count, row);
  }
  return rows;
}

}  // namespace

std::vector<PackedRow> pack(std::span<const int64_t> lengths, int64_t row_length, Packing how) {
  if (how == Packing::kFill) return filled(lengths, row_length);
  std::vector<PackedPart> parts = pieces(lengths, row_length);
  if (how == Packing::kFit) return fitted(std::move(parts), row_length);
  std::vector<PackedRow> rows;
  for (const PackedPart& part : parts) rows.push_back({part});
  return rows;
}

}  // namespace tessera::data

#include "tessera/data/packing.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

// Documents `begin` to `end` as pieces of at most a row each.
std::vector<PackedPart> pieces_of(std::span<const uint64_t> offsets, size_t begin, size_t end, int64_t row_length) {
  std::vector<PackedPart> all;
  for (size_t document = begin; document < end; ++document) {
    const auto length = static_cast<int64_t>(offsets[document + 1] - offsets[document]);
    for (int64_t first = 0; first < length; first += row_length) {
      all.push_back({document, first, std::min(row_length, length - first)});
    }
  }
  return all;
}

// In which row each of the parts is; rows are as many as the largest number says.
std::vector<size_t> fitted(std::span<const PackedPart> parts, int64_t row_length) {
  std::vector<size_t> row_of(parts.size());
  std::multimap<int64_t, size_t> by_room;  // rows that are not full
  size_t rows = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto least = by_room.lower_bound(parts[i].count);
    size_t row = rows;
    int64_t room = row_length;
    if (least == by_room.end()) {
      ++rows;
    } else {
      std::tie(room, row) = *least;
      by_room.erase(least);
    }
    row_of[i] = row;
    if (room > parts[i].count) by_room.emplace(room - parts[i].count, row);
  }
  return row_of;
}

}  // namespace

PackedRows::PackedRows(std::span<const uint64_t> offsets, std::span<const uint64_t> part_ends, int64_t row_length,
                       Packing how)
    : offsets_(offsets), row_length_(row_length), how_(how) {
  TESSERA_INVARIANT(row_length > 0 && !part_ends.empty() && part_ends.back() + 1 == offsets.size());
  size_t begin = 0;
  for (const uint64_t end : part_ends) {
    token_ends_.push_back(offsets[end]);
    if (how == Packing::kFill) {
      const uint64_t tokens = offsets[end] - offsets[begin], each = static_cast<uint64_t>(row_length);
      part_ends_.push_back(size() + (tokens + each - 1) / each);
    } else {
      keep(pieces_of(offsets, begin, end, row_length), how);
      part_ends_.push_back(kept_.starts.size() - 1);
    }
    begin = end;
  }
}

void PackedRows::keep(std::vector<PackedPart> pieces, Packing how) {
  std::vector<size_t> row_of(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) row_of[i] = i;
  if (how == Packing::kFit) {
    std::stable_sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.count > b.count; });
    row_of = fitted(pieces, row_length_);
  }
  std::vector<size_t> order(pieces.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return row_of[a] < row_of[b]; });
  for (size_t i = 0; i < order.size(); ++i) {
    kept_.parts.push_back(pieces[order[i]]);
    const bool ends = i + 1 == order.size() || row_of[order[i + 1]] != row_of[order[i]];
    if (ends) kept_.starts.push_back(kept_.parts.size());
  }
}

PackedRow PackedRows::row(size_t i) const {
  if (how_ == Packing::kFill) return filled_row(i);
  const auto first = kept_.parts.begin();
  return {first + static_cast<std::ptrdiff_t>(kept_.starts[i]),
          first + static_cast<std::ptrdiff_t>(kept_.starts[i + 1])};
}

// As many tokens as there is room for, from where the rows before it in its part end.
PackedRow PackedRows::filled_row(size_t i) const {
  const auto part = static_cast<size_t>(std::upper_bound(part_ends_.begin(), part_ends_.end(), i) - part_ends_.begin());
  const size_t rows_before = part == 0 ? 0 : part_ends_[part - 1];
  const uint64_t part_begin = part == 0 ? 0 : token_ends_[part - 1];
  uint64_t at = part_begin + (i - rows_before) * static_cast<uint64_t>(row_length_);
  const uint64_t end = std::min(at + static_cast<uint64_t>(row_length_), token_ends_[part]);
  auto document = static_cast<size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), at) - offsets_.begin()) - 1;
  PackedRow row;
  for (; at < end; ++document) {
    const uint64_t count = std::min(offsets_[document + 1], end) - at;
    if (count == 0) continue;  // a document without tokens
    row.push_back({document, static_cast<int64_t>(at - offsets_[document]), static_cast<int64_t>(count)});
    at += count;
  }
  return row;
}

}  // namespace tessera::data

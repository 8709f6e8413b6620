// Documents of different lengths laid end to end in rows of one length, so that hardly a position is padding. Pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::data {

enum class Packing {
  kNone,  // a row for each document
  kFill,  // in their order, cut at the end of each row: only the last row is not full
  kFit,   // whole, each where it leaves least room (best fit, longest first; Ding et al. 2024, "Fewer Truncations")
};

// `count` tokens of a document, from its `first` on.
struct PackedPart {
  size_t document = 0;
  int64_t first = 0;
  int64_t count = 0;
};
using PackedRow = std::vector<PackedPart>;

// lengths: of the documents, in tokens. Of a document that is longer than a row, kNone and kFit make rows of its
// pieces; a document without tokens is in none.
std::vector<PackedRow> pack(std::span<const int64_t> lengths, int64_t row_length, Packing how);

}  // namespace tessera::data

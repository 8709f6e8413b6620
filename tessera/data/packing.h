// Documents of different lengths laid end to end in rows of one length, so that hardly a position is padding.
// Immutable; safe to read from any thread.
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

// Rows of consecutive documents. Those of kFill are not kept but found when asked for, so they take no memory; the
// others take 24 bytes and more a document.
class PackedRows {
 public:
  // `offsets`: where each document begins among all tokens, then where the last ends; borrowed. Of a document that is
  // longer than a row, kNone and kFit make rows of its pieces; a document without tokens is in none. `part_ends`:
  // documents up to the end of each part, the last all of them: no row has documents of two parts.
  PackedRows(std::span<const uint64_t> offsets, std::span<const uint64_t> part_ends, int64_t row_length, Packing how);

  size_t size() const { return part_ends_.empty() ? 0 : part_ends_.back(); }
  PackedRow row(size_t i) const;

  // Rows up to the end of each part.
  const std::vector<size_t>& part_ends() const { return part_ends_; }

 private:
  struct Kept {  // not of kFill
    std::vector<PackedPart> parts;
    std::vector<size_t> starts{0};  // of each row among the parts; one more than rows
  };
  void keep(std::vector<PackedPart> pieces, Packing how);
  PackedRow filled_row(size_t i) const;

  std::span<const uint64_t> offsets_;
  int64_t row_length_;
  Packing how_;
  std::vector<uint64_t> token_ends_;  // of each part
  std::vector<size_t> part_ends_;
  Kept kept_;
};

}  // namespace tessera::data

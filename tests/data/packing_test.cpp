#include "tessera/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace tessera::data::packing_test {
namespace {

std::vector<int64_t> drawn_lengths() {
  std::mt19937 random(3);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 500; ++i) lengths.push_back(static_cast<int64_t>(random() % 150));
  return lengths;
}

struct Offsets {
  std::vector<uint64_t> values{0};
  explicit Offsets(const std::vector<int64_t>& lengths) {
    for (const int64_t length : lengths) values.push_back(values.back() + static_cast<uint64_t>(length));
  }
};

std::vector<PackedRow> rows_of(const std::vector<int64_t>& lengths, const std::vector<uint64_t>& part_ends,
                               int64_t row_length, Packing how) {
  const Offsets offsets(lengths);
  const PackedRows packed(offsets.values, part_ends, row_length, how);
  std::vector<PackedRow> rows;
  for (size_t i = 0; i < packed.size(); ++i) rows.push_back(packed.row(i));
  return rows;
}

std::vector<PackedRow> pack(const std::vector<int64_t>& lengths, int64_t row_length, Packing how) {
  return rows_of(lengths, {lengths.size()}, row_length, how);
}

class PackingOf : public testing::TestWithParam<Packing> {};
INSTANTIATE_TEST_SUITE_P(How, PackingOf, testing::Values(Packing::kNone, Packing::kFill, Packing::kFit));

TEST_P(PackingOf, EachTokenIsInOneRowAndNoRowIsTooLong) {
  constexpr int64_t kRow = 64;
  const std::vector<int64_t> lengths = drawn_lengths();
  std::map<size_t, std::map<int64_t, int64_t>> parts;  // of each document: where they begin, and their tokens
  for (const PackedRow& row : pack(lengths, kRow, GetParam())) {
    int64_t length = 0;
    for (const PackedPart& part : row) {
      EXPECT_GT(part.count, 0);
      EXPECT_TRUE(parts[part.document].emplace(part.first, part.count).second);
      length += part.count;
    }
    EXPECT_LE(length, kRow);
  }
  for (size_t document = 0; document < lengths.size(); ++document) {
    int64_t next = 0;
    for (const auto& [first, count] : parts[document]) {
      EXPECT_EQ(first, next);
      next = first + count;
    }
    EXPECT_EQ(next, lengths[document]);
  }
}

TEST_P(PackingOf, NoRowHasDocumentsOfTwoParts) {
  const std::vector<int64_t> lengths = drawn_lengths();
  const std::vector<uint64_t> part_ends{100, 130, 500};
  const Offsets offsets(lengths);
  const PackedRows packed(offsets.values, part_ends, 64, GetParam());
  ASSERT_EQ(packed.part_ends().size(), 3u);
  EXPECT_EQ(packed.part_ends().back(), packed.size());
  std::vector<uint64_t> tokens(3);
  for (size_t i = 0; i < packed.size(); ++i) {
    size_t part = 0;
    while (i >= packed.part_ends()[part]) ++part;
    for (const PackedPart& piece : packed.row(i)) {
      EXPECT_GE(piece.document, part == 0 ? 0 : part_ends[part - 1]);
      EXPECT_LT(piece.document, part_ends[part]);
      tokens[part] += static_cast<uint64_t>(piece.count);
    }
  }
  EXPECT_EQ(tokens[0], offsets.values[100]);
  EXPECT_EQ(tokens[1], offsets.values[130] - offsets.values[100]);
}

TEST(Packing, FillLeavesRoomInTheLastRowAlone) {
  const std::vector<int64_t> lengths = drawn_lengths();
  int64_t tokens = 0;
  for (const int64_t length : lengths) tokens += length;
  EXPECT_EQ(pack(lengths, 64, Packing::kFill).size(), static_cast<size_t>((tokens + 63) / 64));
}

TEST(Packing, FitCutsOnlyWhatIsLongerThanARow) {
  for (const PackedRow& row : pack(std::vector<int64_t>{3, 64, 61, 130, 0, 2}, 64, Packing::kFit)) {
    for (const PackedPart& part : row) {
      if (part.document != 3) {
        EXPECT_EQ(part.first, 0);
      }
    }
  }
  EXPECT_EQ(pack(std::vector<int64_t>{3, 64, 61, 130, 0, 2}, 64, Packing::kFit).size(), 5u);
  // Where they leave least room: 60 + 4, 50 + 14, 30 + 30.
  EXPECT_EQ(pack(std::vector<int64_t>{30, 14, 60, 4, 50, 30}, 64, Packing::kFit).size(), 3u);
}

}  // namespace
}  // namespace tessera::data::packing_test

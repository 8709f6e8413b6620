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

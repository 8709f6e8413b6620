#include "tessera/layout/box.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace tessera::layout::box_test {
namespace {

using Shape = std::vector<int64_t>;

// The global row-major index of each element of the flattened box, by counting alone.
std::vector<int64_t> globals_of(const Box& box, const Shape& shape) {
  std::vector<int64_t> found;
  const int64_t numel = Box::whole(shape).numel();
  for (int64_t global = 0; global < numel; ++global) {
    int64_t left = global;
    bool inside = true;
    for (size_t dim = shape.size(); dim-- > 0;) {
      const int64_t at = left % shape[dim];
      left /= shape[dim];
      inside = inside && at >= box.offset[dim] && at < box.offset[dim] + box.extent[dim];
    }
    if (inside) found.push_back(global);
  }
  return found;
}

std::vector<Box> boxes_in(const Shape& shape) {
  std::vector<Box> boxes{{{}, {}}};
  for (const int64_t size : shape) {
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (int64_t begin = 0; begin < size; ++begin) {
        for (int64_t extent = 1; begin + extent <= size; ++extent) {
          Box next = box;
          next.offset.push_back(begin);
          next.extent.push_back(extent);
          longer.push_back(next);
        }
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

// Every pair of boxes of small tensors, with whole and with partial runs, against counting element by element.
TEST(Box, CommonRunsAreTheElementsThatBothHold) {
  for (const Shape& shape : {Shape{}, Shape{4}, Shape{3, 4}, Shape{2, 3, 2}}) {
    const std::vector<Box> boxes = boxes_in(shape);
    for (const Box& a : boxes) {
      for (const Box& b : boxes) {
        const auto in_a = globals_of(a, shape), in_b = globals_of(b, shape);
        const int64_t cut_a = a.numel() / 3, cut_b = b.numel() / 2;
        const BoxRun run_a{a, {cut_a, a.numel()}}, run_b{b, {0, b.numel() - cut_b / 2}};
        std::map<int64_t, int64_t> expected;  // index in a, index in b
        for (int64_t i = run_a.run.begin; i < run_a.run.end; ++i) {
          const auto found = std::find(in_b.begin(), in_b.begin() + run_b.run.end, in_a[static_cast<size_t>(i)]);
          if (found != in_b.begin() + run_b.run.end) expected[i] = found - in_b.begin();
        }
        std::map<int64_t, int64_t> seen;
        for_each_common_run(run_a, run_b, [&](const CommonRun& common) {
          ASSERT_GT(common.numel, 0);
          for (int64_t i = 0; i < common.numel; ++i) seen[common.first_in_a + i] = common.first_in_b + i;
        });
        ASSERT_EQ(seen, expected);
      }
    }
  }
}

int64_t runs_between(const Box& a, const Box& b) {
  int64_t count = 0;
  for_each_common_run({a, {0, a.numel()}}, {b, {0, b.numel()}}, [&](const CommonRun&) { ++count; });
  return count;
}

TEST(Box, CommonRunsAreAsLongAsPossible) {
  const Box whole = Box::whole({64, 32});
  EXPECT_EQ(runs_between(whole, whole), 1);
  EXPECT_EQ(runs_between({{16, 0}, {16, 32}}, whole), 1);            // rows lie together
  EXPECT_EQ(runs_between({{0, 8}, {64, 8}}, whole), 64);             // columns: one a row
  EXPECT_EQ(runs_between({{0, 8}, {64, 8}}, {{0, 8}, {64, 8}}), 1);  // the same columns on both sides
  EXPECT_EQ(runs_between({{0, 0}, {64, 16}}, {{0, 16}, {64, 16}}), 0);
}

BoxRun all_of(Box box) {
  const int64_t numel = box.numel();
  return {std::move(box), {0, numel}};
}

TEST(Box, AGridOfBoxesCoversTheTensor) {
  const Shape shape{4, 6};
  EXPECT_EQ(why_not_covered(shape, {all_of(Box::whole(shape))}), "");
  EXPECT_EQ(why_not_covered({}, {all_of(Box::whole({}))}), "");
  std::vector<BoxRun> grid;
  for (const int64_t row : {0, 1}) {
    for (const int64_t column : {4, 0}) {  // in any order
      const Box box{{row == 0 ? 0 : 1, column}, {row == 0 ? 1 : 3, column == 0 ? 4 : 2}};
      const int64_t half = box.numel() / 2;
      grid.push_back({box, {half, box.numel()}});
      grid.push_back({box, {0, half}});
    }
  }
  EXPECT_EQ(why_not_covered(shape, grid), "");
  for (size_t left_out = 0; left_out < grid.size(); ++left_out) {
    std::vector<BoxRun> fewer = grid, twice = grid;
    fewer.erase(fewer.begin() + static_cast<int64_t>(left_out));
    twice.push_back(grid[left_out]);
    EXPECT_NE(why_not_covered(shape, fewer), "");
    EXPECT_NE(why_not_covered(shape, twice), "");
  }
}

TEST(Box, WhatCannotBeIsNotCovered) {
  constexpr int64_t kMost = INT64_MAX;
  const Shape shape{4, 6};
  EXPECT_NE(why_not_covered(shape, {}), "");
  EXPECT_NE(why_not_covered(shape, {{{{0}, {24}}, {0, 24}}}), "");           // of another number of dimensions
  EXPECT_NE(why_not_covered(shape, {{{{0, 0}, {4, 7}}, {0, 28}}}), "");      // beyond its end
  EXPECT_NE(why_not_covered(shape, {{{{-1, 0}, {4, 6}}, {0, 24}}}), "");     // before its beginning
  EXPECT_NE(why_not_covered(shape, {{{{kMost, 0}, {4, 6}}, {0, 24}}}), "");  // whose end would overflow
  EXPECT_NE(why_not_covered(shape, {{{{0, 0}, {kMost, kMost}}, {0, 24}}}), "");
  EXPECT_NE(why_not_covered(shape, {{Box::whole(shape), {0, kMost}}}), "");
  EXPECT_NE(why_not_covered(shape, {{Box::whole(shape), {8, 24}}, {Box::whole(shape), {0, 9}}}), "");  // overlap
  // Not a grid: the boxes of the second row are cut elsewhere.
  EXPECT_NE(why_not_covered({2, 2}, {all_of({{0, 0}, {1, 2}}), all_of({{1, 0}, {1, 1}}), all_of({{1, 1}, {1, 1}})}),
            "");
}

}  // namespace
}  // namespace tessera::layout::box_test

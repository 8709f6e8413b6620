#include "tessera/data/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::data::mixture_test {
namespace {

using testing::ElementsAre;

Mixture mixture_of(const std::vector<size_t>& part_ends, const std::vector<double>& weights, uint64_t seed = 1) {
  return Mixture(part_ends, weights, seed);
}

TEST(Mixture, AnEpochEndsWhereThePartThatRunsOutFirstWasSeenOnce) {
  EXPECT_THAT(mixture_of({800, 1000}, {1, 1}).samples_of_parts(), ElementsAre(200, 200));
  EXPECT_THAT(mixture_of({800, 1000}, {8, 2}).samples_of_parts(), ElementsAre(800, 200));
  EXPECT_THAT(mixture_of({800, 1000}, {0.3, 0.1}).samples_of_parts(), ElementsAre(600, 200));
  EXPECT_THAT(mixture_of({70, 90, 190}, {7, 1, 2}).samples_of_parts(), ElementsAre(70, 10, 20));
  EXPECT_EQ(mixture_of({70, 90, 190}, {7, 1, 2}).size(), 100u);
}

TEST(Mixture, EachSampleOfAPartComesOnceBeforeAnyComesAgain) {
  const Mixture mixture = mixture_of({50, 80}, {1, 2});  // 15 and 30 an epoch
  ASSERT_THAT(mixture.samples_of_parts(), ElementsAre(15, 30));
  std::map<size_t, int> seen;
  for (int64_t epoch = 0; epoch < 10; ++epoch) {  // 150 of the first part: three passes
    std::set<size_t> of_epoch;
    for (size_t i = 0; i < mixture.size(); ++i) {
      const size_t sample = mixture.sample(i, epoch);
      EXPECT_EQ(sample < 50, i < 15);
      ++seen[sample];
      of_epoch.insert(sample);
    }
    EXPECT_GE(of_epoch.size(), 40u);
  }
  ASSERT_EQ(seen.size(), 80u);
  for (const auto& [sample, times] : seen) EXPECT_EQ(times, sample < 50 ? 3 : 10) << sample;
}

TEST(Mixture, TheSeedAndTheEpochDecideTheOrder) {
  const auto order = [](uint64_t seed, int64_t epoch) {
    const Mixture mixture = mixture_of({100, 200}, {1, 1}, seed);
    std::vector<size_t> samples;
    for (size_t i = 0; i < mixture.size(); ++i) samples.push_back(mixture.sample(i, epoch));
    return samples;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
}

TEST(Mixture, APartWithoutASampleIsRefused) {
  EXPECT_THROW(mixture_of({10, 1000}, {1000, 1}), Error);
  EXPECT_NO_THROW(mixture_of({1000, 1010}, {1000, 1}));
}

TEST(Mixture, ADrawnOrderHasEachPlaceOnce) {
  for (const size_t size : {1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097}) {
    std::set<size_t> places;
    for (size_t i = 0; i < size; ++i) places.insert(place_in_drawn_order(i, size, 7, 3));
    EXPECT_EQ(places.size(), size);
    EXPECT_EQ(*places.rbegin(), size - 1);
  }
}

// Of a fair draw the number of samples in each of 16 cells is about the same: chi-squared with 15 degrees of freedom is
// below 37.7 in 999 of 1000 draws.
TEST(Mixture, ADrawnOrderIsSpreadEvenly) {
  constexpr size_t kSize = 16'000, kTaken = 1'600, kCells = 16;
  std::vector<double> cells(kCells);
  for (size_t i = 0; i < kTaken; ++i) cells[place_in_drawn_order(i, kSize, 42, 0) * kCells / kSize] += 1;
  double chi_squared = 0;
  constexpr double kExpected = double{kTaken} / kCells;
  for (const double count : cells) chi_squared += (count - kExpected) * (count - kExpected) / kExpected;
  EXPECT_LT(chi_squared, 37.7);
  EXPECT_GT(chi_squared, 2);  // nor evenly as no draw is
}

TEST(Mixture, SamplesAreCollatedByTheNumbersOfAll) {
  const Samples<std::vector<size_t>> all{
      .size = 5,
      .collate = [](std::span<const size_t> rows, int64_t) { return std::vector<size_t>(rows.begin(), rows.end()); },
      .count_targets = [](std::span<const size_t> rows, int64_t) { return static_cast<int64_t>(10 * rows[0]); }};
  const auto some = renumbered<std::vector<size_t>>(
      all, 2, [](size_t i, int64_t epoch) { return 3 + (i + static_cast<size_t>(epoch)) % 2; });
  EXPECT_EQ(some.size, 2u);
  EXPECT_THAT(some.collate(std::vector<size_t>{0, 1}, 0), ElementsAre(3, 4));
  EXPECT_THAT(some.collate(std::vector<size_t>{0, 1}, 1), ElementsAre(4, 3));
  EXPECT_EQ(some.count_targets(std::vector<size_t>{0}, 0), 30);
}

}  // namespace
}  // namespace tessera::data::mixture_test

#include "tessera/zero/residency.h"

#include <gtest/gtest.h>

#include "tests/zero/one_rank_units.h"

namespace tessera::zero::residency_test {
namespace {

using test::kUnitNumel;
using test::OneRankUnits;

Residency made(const OneRankUnits& of, const config::ResidencyOptions& options, std::vector<bool> persistent = {}) {
  if (persistent.empty()) persistent.assign(of.units.size(), false);
  return Residency(of.units, std::move(persistent), options, /*shards=*/1);
}

TEST(Residency, HoldsAUnitUntilItsLastHolderDropsIt) {
  const OneRankUnits of(2);
  Residency residency = made(of, {});
  residency.hold({0});
  residency.hold({0, 1});
  EXPECT_EQ(of.states(), "WW");
  residency.drop(0);
  residency.drop(1);
  EXPECT_EQ(of.states(), "W-");
  residency.evict(0);  // somebody holds it
  EXPECT_EQ(of.states(), "W-");
  residency.drop(0);
  EXPECT_EQ(of.states(), "--");
}

TEST(Residency, KeepsWhatIsSmallUntilAllIsEvicted) {
  const OneRankUnits of(2);
  Residency residency = made(of, {.max_live_parameters = 100 * kUnitNumel}, {true, false});
  residency.hold({0, 1});
  residency.drop(0);
  residency.drop(1);
  EXPECT_EQ(of.states(), "W-");
  residency.end_pass();
  EXPECT_EQ(of.states(), "W-");
  residency.evict_all();
  EXPECT_EQ(of.states(), "--");
}

// In the order of the pass before, 0 1 2 0, unit 0 is used again after 1 and 2: 64 elements.
TEST(Residency, KeepsWhatIsUsedAgainWithinTheReuseDistance) {
  for (const int64_t distance : {2 * kUnitNumel, 2 * kUnitNumel + 1}) {
    const OneRankUnits of(3);
    Residency residency = made(of, {.max_live_parameters = 100 * kUnitNumel, .max_reuse_distance = distance});
    for (int pass = 0; pass < 2; ++pass) {
      residency.hold_in_turn({0});
      residency.drop(0);
      const bool stays = pass == 1 && distance > 2 * kUnitNumel;
      EXPECT_EQ(of.states(), stays ? "W--" : "---");
      for (const size_t unit : {1, 2, 0}) {
        residency.hold_in_turn({unit});
        residency.drop(unit);
      }
      residency.end_pass();
      EXPECT_EQ(of.states(), "---");
    }
  }
}

// The order is 0 1 2 0 1 2: when 2 comes, 0 is used sooner than 1.
TEST(Residency, EvictsWhatIsUsedLastWhereTheLimitIsReached) {
  const OneRankUnits of(3);
  Residency residency = made(of, {.max_live_parameters = 2 * kUnitNumel, .max_reuse_distance = 100 * kUnitNumel});
  for (int pass = 0; pass < 2; ++pass) {
    for (const size_t unit : {0, 1, 2, 0, 1, 2}) {
      residency.hold_in_turn({unit});
      residency.drop(unit);
      if (pass == 1 && unit == 2) {
        EXPECT_EQ(of.states(), "W-W");
        break;
      }
    }
    if (pass == 0) residency.end_pass();
  }
}

TEST(Residency, ForgetsHoldersAfterAnException) {
  const OneRankUnits of(1);
  Residency residency = made(of, {});
  residency.hold({0});
  residency.forget_holders();
  residency.end_pass();
  EXPECT_EQ(of.states(), "-");
}

}  // namespace
}  // namespace tessera::zero::residency_test

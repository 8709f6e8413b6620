#include "tessera/zero/gathered.h"

#include <gtest/gtest.h>

#include "tessera/zero/unreadable.h"
#include "tests/support/spawn_ranks.h"
#include "tests/zero/three_params.h"

namespace tessera::zero {
namespace {

TEST(Gathered, MakesParametersWholeForAsLongAsOneGuardLives) {
  test::spawn_ranks(test::kThreeRanks, [](const auto& world) {
    test::ThreeParams model(policy_of_stage(3, at::kFloat, test::kThreeRanks), {}, world);
    EXPECT_TRUE(is_unreadable(model.params[1]));
    {
      const Gathered outer(*model.sharded);
      {
        const Gathered inner(*model.sharded);
        EXPECT_TRUE(at::equal(model.params[1].detach(), test::numbers(1)));
      }
      EXPECT_TRUE(at::equal(model.params[0].detach(), test::numbers(0)));
    }
    EXPECT_TRUE(is_unreadable(model.params[0]));
  });
}

TEST(Gathered, DoesNothingWhereParametersAreAlwaysWhole) {
  test::spawn_ranks(2, [](const auto& world) {
    test::ThreeParams model(policy_of_stage(2, at::kFloat, 2), {}, world);
    const int64_t sent = world->bytes_sent();
    { const Gathered guard(*model.sharded); }
    EXPECT_EQ(world->bytes_sent(), sent);
    EXPECT_TRUE(at::equal(model.params[2].detach(), test::numbers(2)));
  });
}

}  // namespace
}  // namespace tessera::zero

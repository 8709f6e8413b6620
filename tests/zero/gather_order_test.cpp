#include "tessera/zero/gather_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::zero::gather_order_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(GatherOrder, KnowsWhatComesNextFromThePassBefore) {
  GatherOrder order;
  for (const size_t unit : {0, 1, 2, 1}) {
    order.gathered(unit);
    EXPECT_THAT(order.upcoming(), IsEmpty());
  }
  order.end_pass();
  EXPECT_THAT(order.upcoming(), ElementsAre(0, 1, 2, 1));
  order.gathered(0);
  order.gathered(1);
  EXPECT_THAT(order.upcoming(), ElementsAre(2, 1));
}

TEST(GatherOrder, FollowsAPassThatSkipsOrAddsUnits) {
  GatherOrder order;
  for (const size_t unit : {0, 1, 2, 3}) order.gathered(unit);
  order.end_pass();
  order.gathered(0);
  order.gathered(2);
  EXPECT_THAT(order.upcoming(), ElementsAre(3));
  order.gathered(7);
  EXPECT_THAT(order.upcoming(), ElementsAre(3)) << "a unit that the record does not have";
  order.end_pass();
  EXPECT_THAT(order.upcoming(), ElementsAre(0, 2, 7));
}

}  // namespace
}  // namespace tessera::zero::gather_order_test

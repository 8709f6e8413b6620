#include "tessera/base/activity.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace tessera::activity_test {
namespace {

TEST(Activity, IsTheInnermostAndThenTheOneAroundIt) {
  EXPECT_EQ(current_activity().words, "");
  {
    const Activity outer("evaluation");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    {
      const Activity inner("next batches");
      EXPECT_EQ(current_activity().words, "next batches");
    }
    EXPECT_EQ(current_activity().words, "evaluation");
    EXPECT_GE(current_activity().lasted, std::chrono::milliseconds(20));  // since its own beginning
  }
  EXPECT_EQ(current_activity().words, "");
}

}  // namespace
}  // namespace tessera::activity_test

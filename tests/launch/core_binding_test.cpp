#include "tessera/launch/core_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::launch::core_binding_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CoreBinding, ReadsCoresAndRanges) {
  EXPECT_THAT(parse_core_list("0,2-4,8"), ElementsAre(0, 2, 3, 4, 8));
  for (const char* wrong : {"", "a", "3-1", "0,0", "2-4,3", "1-", "-1", "0;1", "0,,1", "0-99999999"}) {
    EXPECT_THROW(parse_core_list(wrong), Error) << wrong;
  }
}

TEST(CoreBinding, RanksHaveEqualConsecutiveSharesAndTheMemoryOfTheirNode) {
  const std::vector<std::vector<int>> nodes = {{0, 1, 2, 3}, {4, 5, 6, 7}};
  const CoreBinding last = bind_cores({.numa_nodes = nodes, .ranks = 4, .local_rank = 3});
  EXPECT_THAT(last.cores, ElementsAre(6, 7));
  EXPECT_THAT(last.command, ElementsAre("numactl", "-m", "1", "-C", "6,7"));
  // Across two nodes memory is left to the system, and on one node there is no choice.
  EXPECT_THAT(bind_cores({.core_list = "2-5", .numa_nodes = nodes}).command, ElementsAre("numactl", "-C", "2,3,4,5"));
  EXPECT_THAT(bind_cores({.numa_nodes = {{0, 1}}, .ranks = 2}).command, ElementsAre("numactl", "-C", "0"));
}

TEST(CoreBinding, CoresThatDoNotDivideAreLeftOver) {
  const CoreShare share{.core_list = "0-6", .ranks = 3, .local_rank = 2};
  EXPECT_THAT(bind_cores(share).cores, ElementsAre(4, 5));  // 7 / 3 = 2 each
}

TEST(CoreBinding, RefusesFewerCoresThanRanks) {
  try {
    bind_cores({.core_list = "0-1", .ranks = 3});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.report().what, HasSubstr("fewer cores (2) than ranks to bind to them (3)"));
  }
}

}  // namespace
}  // namespace tessera::launch::core_binding_test

#include "tessera/launch/free_port.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace tessera::launch {
namespace {

// By chance alone 500 of the 12768 ports would have about ten twins.
TEST(FreePort, IsOfOneLauncherAtATime) {
  std::vector<FreePort> ports;
  std::set<int> numbers;
  for (int i = 0; i < 500; ++i) numbers.insert(ports.emplace_back(pick_free_port()).number);
  EXPECT_EQ(numbers.size(), ports.size());
}

}  // namespace
}  // namespace tessera::launch

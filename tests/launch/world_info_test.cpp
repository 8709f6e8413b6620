#include "tessera/launch/world_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::launch::world_info_test {
namespace {

using ::testing::ElementsAre;

// By Python: base64.urlsafe_b64encode(json.dumps({"worker-0": [0, 1], "b": [3]}).encode())
constexpr const char* kOfPython = "eyJ3b3JrZXItMCI6IFswLCAxXSwgImIiOiBbM119";

TEST(WorldInfo, IsTheWordThatPythonWrites) {
  EXPECT_EQ(encode_world_info({{"worker-0", {0, 1}}, {"b", {3}}}), kOfPython);
}

TEST(WorldInfo, GoesThereAndBackWhateverItsLength) {
  std::vector<HostSlots> hosts;
  for (int i = 0; i < 7; ++i) {
    hosts.push_back({std::string(static_cast<size_t>(i + 1), 'h') + "ä", first_slots(i + 1)});
    EXPECT_EQ(decode_world_info(encode_world_info(hosts)), hosts);
  }
}

TEST(WorldInfo, ANumberOfSlotsStandsForThoseBelowIt) {
  // {"a": 2}
  EXPECT_THAT(decode_world_info("eyJhIjogMn0="), ElementsAre(HostSlots{"a", {0, 1}}));
}

TEST(WorldInfo, RefusesWhatIsNoneOfOurs) {
  // Not base64; not JSON; [1]; {"a": "b"}; {}; {"a": -1}
  for (const char* text : {"x", "!", "", "WzFd", "eyJhIjogImIifQ==", "e30=", "eyJhIjogLTF9"}) {
    EXPECT_THROW(decode_world_info(text), Error) << text;
  }
}

}  // namespace
}  // namespace tessera::launch::world_info_test

#include "tessera/launch/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/base/error.h"
#include "tests/support/temporary_folder.h"

namespace tessera::launch::hostfile_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Hostfile, HasHostsInItsOrderAndIgnoresCommentsAndWhatFollowsTheNumber) {
  EXPECT_THAT(parse_hostfile({"# all", "", "worker-1 slots=2 # fast", "  10.0.0.7\tslots=1\r"}, "hosts"),
              ElementsAre(HostSlots{"worker-1", {0, 1}}, HostSlots{"10.0.0.7", {0}}));
}

TEST(Hostfile, AWrongLineIsNamedByFileAndLine) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"a slots=1", "worker"}, "hosts:2"},
      {{"a slots=x"}, "hosts:1"},
      {{"two words slots=1"}, "hosts:1"},
      {{"a slots=2x"}, "hosts:1"},
      {{"", "a slots=1", "a slots=2"}, "hosts:3"},
      {{"a slots=0"}, "hosts:1"},
      {{"a slots=999999"}, "hosts:1"},
      {{"# none"}, "hosts"},
  };
  for (const auto& [lines, where] : cases) {
    try {
      parse_hostfile(lines, "hosts");
      ADD_FAILURE() << lines.back() << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_EQ(error.report().where, where) << lines.back();
    }
  }
}

TEST(Hostfile, IsReadFromAFile) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "hosts") << "a slots=3\nb slots=1\n";
  EXPECT_EQ(rank_count(read_hostfile(folder.path() / "hosts")), 4);
  EXPECT_THROW(read_hostfile(folder.path() / "none"), Error);
}

}  // namespace
}  // namespace tessera::launch::hostfile_test

#include "tessera/base/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace tessera::host_memory_test {
namespace {

class HostMemoryOfFiles : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  HostMemory memory() const {
    return host_memory({folder_.path() / "meminfo", folder_.path() / "cgroup", folder_.path() / "groups"});
  }
  void SetUp() override {
    write("meminfo",
          "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    800 kB\nSwapFree:         50 kB\n");
  }

  test::TemporaryFolder folder_;
};

TEST_F(HostMemoryOfFiles, WithoutGroupsItIsTheMachines) {
  EXPECT_EQ(memory().limit, 1000 * 1024);
  EXPECT_EQ(memory().available, 800 * 1024);
  EXPECT_EQ(memory().free_swap, 50 * 1024);
}

TEST_F(HostMemoryOfFiles, TheSmallestLimitAboveUsCountsAndItsCacheIsAvailable) {
  write("cgroup", "0::/user/job\n");
  write("groups/user/job/memory.max", "max\n");
  write("groups/user/memory.max", "400000\n");
  write("groups/user/memory.current", "150000\n");
  write("groups/user/memory.stat", "anon 100000\ninactive_file 30000\nactive_file 20000\n");
  EXPECT_EQ(memory().limit, 400000);
  EXPECT_EQ(memory().available, 400000 - (150000 - 50000));
}

TEST_F(HostMemoryOfFiles, GroupsOfVersion1CountToo) {
  write("cgroup", "4:cpu,memory:/job\n1:name=systemd:/\n0::/\n");
  write("groups/memory/job/memory.limit_in_bytes", "300000\n");
  write("groups/memory/job/memory.usage_in_bytes", "100000\n");
  EXPECT_EQ(memory().available, 200000);
}

TEST_F(HostMemoryOfFiles, AGroupThatIsFullLeavesNothing) {
  write("cgroup", "0::/\n");
  write("groups/memory.max", "1000\n");
  write("groups/memory.current", "2000\n");
  EXPECT_EQ(memory().available, 0);
}

}  // namespace
}  // namespace tessera::host_memory_test

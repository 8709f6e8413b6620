#include "tessera/base/host_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"

namespace tessera::host_facts_test {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

const Fact& find(const std::vector<Fact>& facts, const std::string& topic, const std::string& name) {
  for (const Fact& fact : facts) {
    if (fact.topic == topic && fact.name == name) return fact;
  }
  ADD_FAILURE() << "there is no fact " << topic << ", " << name;
  static const Fact none;
  return none;
}

TEST(HostFacts, TheSharedMemoryOfADockerContainerIsWarnedOf) {
  const auto facts = shared_memory_facts("/dev/shm", 64 * kMiB, 64 * kMiB);
  EXPECT_EQ(facts[0].number, 64 * kMiB);
  EXPECT_THAT(facts[0].warning.value_or(""), HasSubstr("--shm-size"));
  EXPECT_FALSE(facts[1].warning);  // said once
}

TEST(HostFacts, SharedMemoryThatIsFullIsWarnedOf) {
  const auto facts = shared_memory_facts("/dev/shm", 8192 * kMiB, kMiB);
  EXPECT_FALSE(facts[0].warning);
  EXPECT_THAT(facts[1].warning.value_or(""), HasSubstr("only 1.0"));
  for (const Fact& fact : shared_memory_facts("/dev/shm", 8192 * kMiB, 4096 * kMiB)) EXPECT_FALSE(fact.warning);
}

TEST(HostFacts, TheSizeIsThatOfTheFoldersFileSystem) {
  const test::TemporaryFolder folder;
  struct statvfs found {};
  ASSERT_EQ(statvfs(folder.path().c_str(), &found), 0);
  const std::string topic = folder.path().string();
  EXPECT_EQ(find(host_facts({.shared_memory = folder.path()}), topic, "size").number, found.f_blocks * found.f_frsize);
}

TEST(HostFacts, AFolderThatIsNotThereIsWarnedOf) {
  const test::TemporaryFolder folder;
  const auto missing = folder.path() / "shm";
  EXPECT_THAT(find(host_facts({.shared_memory = missing}), missing.string(), "size").warning.value_or(""),
              HasSubstr("mount a tmpfs"));
}

// docs.kernel.org, cgroup-v2, cpu.max: "$MAX $PERIOD", both in microseconds.
TEST(HostFacts, AControlGroupsQuotaIsTheTimeOfSoManyProcessors) {
  EXPECT_EQ(processors_of_quota("150000 100000"), 1.5);
  EXPECT_EQ(processors_of_quota("max 100000"), std::nullopt);
  EXPECT_EQ(processors_of_quota(""), std::nullopt);
}

TEST(HostFacts, AQuotaBelowTheProcessorsSaysHowManyThreadsToStart) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "cpu.max") << "50000 100000\n";
  const auto facts = host_facts({.processor_quota = folder.path() / "cpu.max"});
  EXPECT_THAT(find(facts, "processors", "of the control group").warning.value_or(""), HasSubstr("OMP_NUM_THREADS=1"));
}

TEST(HostFacts, OnlyAHardLimitOfOpenFilesIsInTheWay) {
  EXPECT_FALSE(open_files_fact({.rlim_cur = 256, .rlim_max = 1 << 20}).warning);
  EXPECT_THAT(open_files_fact({.rlim_cur = 256, .rlim_max = 1024}).warning.value_or(""), HasSubstr("ulimit -Hn"));
}

TEST(HostFacts, LockedMemoryIsWarnedOfBelowTheUsualAndBesideInfiniBand) {
  const rlimit usual{.rlim_cur = 8 * kMiB, .rlim_max = 8 * kMiB};
  EXPECT_FALSE(locked_memory_fact(usual, /*has_infiniband=*/false).warning);
  EXPECT_THAT(locked_memory_fact(usual, true).warning.value_or(""), HasSubstr("InfiniBand"));
  const rlimit old{.rlim_cur = kMiB / 16, .rlim_max = kMiB / 16};
  EXPECT_THAT(locked_memory_fact(old, false).warning.value_or(""), HasSubstr("io_uring"));
  EXPECT_FALSE(locked_memory_fact({.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY}, true).warning);
}

TEST(HostFacts, FewProcessesAreWarnedOfUnlessTheUserIsRoot) {
  const rlimit few{.rlim_cur = 100, .rlim_max = 100};
  EXPECT_TRUE(processes_fact(few, /*is_root=*/false).warning);
  EXPECT_FALSE(processes_fact(few, /*is_root=*/true).warning);
}

TEST(HostFacts, AKernelThatNeverOvercommitsIsWarnedOf) {
  EXPECT_FALSE(overcommit_fact(0).warning);
  EXPECT_FALSE(overcommit_fact(1).warning);
  EXPECT_THAT(overcommit_fact(2).warning.value_or(""), HasSubstr("CommitLimit"));
}

TEST(Fact, TextAndJsonSayTheSame) {
  const std::vector<Fact> facts = {fact_of_bytes("memory", "size", 1500),
                                   {.topic = "b", .name = "c", .value = "d", .warning = "e"}};
  EXPECT_EQ(facts_text(facts), "memory\n  size  1.50 kB\n\nb\n  c     d\n\nwarnings\n  b, c: e\n");
  EXPECT_EQ(facts_json(facts).dump(),
            R"([{"topic":"memory","name":"size","value":"1.50 kB","number":1500,"warning":null},)"
            R"({"topic":"b","name":"c","value":"d","number":null,"warning":"e"}])");
}

}  // namespace
}  // namespace tessera::host_facts_test

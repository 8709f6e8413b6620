// Expected lists are those of `scontrol show hostnames`, and of the table in Slurm's manual of srun.
#include "tessera/base/slurm_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::slurm_lists_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SlurmLists, HostsOfRangesKeepTheirZeros) {
  EXPECT_THAT(slurm_hosts("gpu[01-03,7],login1", "X"), ElementsAre("gpu01", "gpu02", "gpu03", "gpu7", "login1"));
  EXPECT_THAT(slurm_hosts("n[9-11]", "X"), ElementsAre("n9", "n10", "n11"));
  EXPECT_THAT(slurm_hosts("alone", "X"), ElementsAre("alone"));
  EXPECT_THAT(slurm_hosts("10.0.0.1,b", "X"), ElementsAre("10.0.0.1", "b"));
}

TEST(SlurmLists, ANameMayHaveSeveralRangesAndAnEnd) {
  EXPECT_THAT(slurm_hosts("r[1-2]n[08-09]-ib,x", "X"),
              ElementsAre("r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib", "x"));
}

TEST(SlurmLists, CountsAreRepeated) {
  EXPECT_THAT(slurm_counts("2(x3),1", "X"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(slurm_counts("16", "X"), ElementsAre(16));
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.report().what;
  }
  return "nothing was refused";
}

TEST(SlurmLists, WhatIsNoListIsAnErrorThatNamesTheVariable) {
  for (const char* const wrong : {"", ",", "a,", "a[1", "a]1[", "a[]", "a[x]", "a[3-1]", "a[1-]", "a[[1]]"}) {
    EXPECT_THAT(refusal([&] { slurm_hosts(wrong, "NODES"); }), HasSubstr("NODES is '" + std::string(wrong) + "'"));
  }
  for (const char* const wrong : {"", "x", "0", "2(x0)", "2(x", "2(3)", "2,", "-1"}) {
    EXPECT_THAT(refusal([&] { slurm_counts(wrong, "TASKS"); }), HasSubstr("TASKS is '" + std::string(wrong) + "'"));
  }
}

TEST(SlurmLists, NoListTakesAllMemory) {
  EXPECT_EQ(slurm_hosts("a[00001-65536]", "X").size(), kMostSlurmHosts);
  EXPECT_THAT(refusal([] { slurm_hosts("a[0-65536]", "X"); }), HasSubstr("more than 65536 hosts"));
  EXPECT_THAT(refusal([] { slurm_hosts("a[0-999][0-999][0-999]", "X"); }), HasSubstr("more than 65536 hosts"));
  EXPECT_THAT(refusal([] { slurm_hosts("a[0-999999999]", "X"); }), HasSubstr("more than 65536 hosts"));
  EXPECT_THAT(refusal([] { slurm_hosts(std::string(100'000, 'a') + "[0-9]", "X"); }), HasSubstr("name is too long"));
  const std::string long_name(200, 'a');
  EXPECT_THAT(refusal([&] { slurm_hosts(long_name + "[0-10][0-10][0-10][0-10]", "X"); }), HasSubstr("characters"));
  EXPECT_THAT(refusal([&] { slurm_hosts(long_name + "[0-4999]," + long_name + "[5000-9999]", "X"); }),
              HasSubstr("characters"));
  EXPECT_THAT(refusal([] { slurm_counts("1(x65537)", "X"); }), HasSubstr("more than 65536 hosts"));
}

}  // namespace
}  // namespace tessera::slurm_lists_test

// The cases of DeepSpeed's own tests of its launcher (tests/unit/launcher/test_run.py), and the options around them.
#include "tessera/launch/host_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::launch::host_filter_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Hosts = std::vector<HostSlots>;

const Hosts kTwo = {{"worker-0", {0, 1, 2, 3}}, {"worker-1", {0, 1, 2, 3}}};

ErrorReport refusal_of(const LaunchRequest& request, const Hosts& pool) {
  try {
    check_host_options(request);
    if (pool.empty()) check_without_hostfile(request);
    choose_hosts(request, pool);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.report();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

TEST(HostFilter, IncludesHostsAndSlotsInTheHostfilesOrder) {
  EXPECT_EQ(filter_hosts(kTwo, {}), kTwo);
  EXPECT_THAT(filter_hosts(kTwo, {.include = "worker-1:0,3"}), ElementsAre(HostSlots{"worker-1", {0, 3}}));
  EXPECT_THAT(filter_hosts(kTwo, {.include = "worker-1@worker-0:2,1,1"}),
              ElementsAre(HostSlots{"worker-0", {1, 2}}, HostSlots{"worker-1", {0, 1, 2, 3}}));
}

TEST(HostFilter, AHostThatComesTwiceHasTheSlotsOfBoth) {
  EXPECT_THAT(filter_hosts(kTwo, {.include = "worker-0:1@worker-0:0"}), ElementsAre(HostSlots{"worker-0", {0, 1}}));
  EXPECT_THAT(filter_hosts(kTwo, {.include = "worker-0:1@worker-0"}), ElementsAre(HostSlots{"worker-0", {0, 1, 2, 3}}));
}

TEST(HostFilter, ExcludesAndDropsAHostWithoutSlots) {
  EXPECT_THAT(filter_hosts(kTwo, {.exclude = "worker-1"}), ElementsAre(kTwo[0]));
  EXPECT_THAT(filter_hosts(kTwo, {.exclude = "worker-0:0,1@worker-1:3"}),
              ElementsAre(HostSlots{"worker-0", {2, 3}}, HostSlots{"worker-1", {0, 1, 2}}));
  EXPECT_THAT(filter_hosts(kTwo, {.exclude = "worker-0:0,1,2,3"}), ElementsAre(kTwo[1]));
}

TEST(HostFilter, TakesTheFirstHostsAndTheirFirstSlots) {
  EXPECT_THAT(choose_hosts({.num_nodes = 1, .num_gpus = 2}, kTwo), ElementsAre(HostSlots{"worker-0", {0, 1}}));
}

TEST(HostFilter, RefusesByTheOptionsName) {
  EXPECT_THAT(refusal_of({.include = "a"}, kTwo).what, HasSubstr("'a' is not in the list of machines"));
  EXPECT_EQ(refusal_of({.exclude = "worker-0:4"}, kTwo).where, "--exclude");
  EXPECT_THAT(refusal_of({.include = "worker-0:x"}, kTwo).what, HasSubstr("'worker-0:x' is not a machine filter"));
  EXPECT_THAT(refusal_of({.include = "worker-0:1:2"}, kTwo).what, HasSubstr("not a machine filter"));
  EXPECT_THAT(refusal_of({.include = "worker-0", .exclude = "worker-1"}, kTwo).what, HasSubstr("both given"));
  EXPECT_THAT(refusal_of({.include = "worker-0", .num_gpus = 1}, kTwo).what,
              HasSubstr("cannot be used with --include"));
  EXPECT_THAT(refusal_of({.exclude = "worker-0@worker-1"}, kTwo).what, HasSubstr("leaves no slots"));
  EXPECT_THAT(refusal_of({.num_nodes = 3}, kTwo).fix, HasSubstr("at most 2"));
  EXPECT_THAT(refusal_of({.num_gpus = 5}, kTwo).what, HasSubstr("--num_gpus is 5, and worker-0 has 4 slots"));
  EXPECT_THAT(refusal_of({.num_nodes = 0}, kTwo).what, HasSubstr("--num_nodes is 0"));
  EXPECT_THAT(refusal_of({.node_rank = 1}, kTwo).what, HasSubstr("--node_rank only makes sense with --no_ssh"));
  EXPECT_THAT(refusal_of({.hostfile = "/no/hosts"}, kTwo).what, HasSubstr("there is no hostfile /no/hosts"));
}

TEST(HostFilter, WithoutAHostfileOnlyThisHostIsThere) {
  EXPECT_THAT(refusal_of({.num_nodes = 2}, {}).what, HasSubstr("--num_nodes is 2, and there is no hostfile"));
  EXPECT_THAT(refusal_of({.include = "worker-0"}, {}).what, HasSubstr("--include names 'worker-0'"));
}

}  // namespace
}  // namespace tessera::launch::host_filter_test

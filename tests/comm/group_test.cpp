#include "tessera/comm/group.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/comm/group_checks.h"
#include "tests/support/far_device.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::comm::group_test {
namespace {

using test::outcomes_of_ranks;
using test::spawn_ranks;
using testing::HasSubstr;

struct Ranks {
  std::string backend;
  int size;
};

std::string name_of(const testing::TestParamInfo<Ranks>& info) {
  return info.param.backend + std::to_string(info.param.size);
}

class GroupOfSize : public testing::TestWithParam<Ranks> {
 protected:
  void spawn(const test::RankBody& body) const { spawn_ranks(GetParam().size, body, {.backend = GetParam().backend}); }
};

TEST_P(GroupOfSize, CollectivesAgreeWithTheirFormulas) { spawn(test::collectives_agree_with_their_formulas); }

TEST_P(GroupOfSize, ExchangesTextsInRankOrder) { spawn(test::texts_come_in_rank_order); }

INSTANTIATE_TEST_SUITE_P(Ranks, GroupOfSize,
                         testing::Values(Ranks{"gloo", 1}, Ranks{"gloo", 2}, Ranks{"gloo", 3}, Ranks{"gloo", 4},
                                         Ranks{"shm", 2}, Ranks{"shm", 3}, Ranks{"shm", 4}, Ranks{"shm", 17}),
                         name_of);

class GroupOn : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, GroupOn, testing::Values("gloo", "shm"),
                         [](const auto& info) { return info.param; });

TEST_P(GroupOn, AllGatherWorksInPlace) { spawn_ranks(2, test::all_gather_works_in_place, {.backend = GetParam()}); }

TEST_P(GroupOn, CollectivesOfADeviceAgreeWithTheirFormulas) {
  const auto check = [](const test::World& world) {
    test::collectives_of_device_agree_with_their_formulas(world, test::far_device());
  };
  spawn_ranks(3, check, {.backend = GetParam()});
}

TEST_P(GroupOn, CarriesMessagesBetweenTwoRanksInOrder) {
  spawn_ranks(3, test::messages_between_two_ranks_come_in_order, {.backend = GetParam()});
}

TEST_P(GroupOn, ChannelsMayInterleaveDifferently) {
  spawn_ranks(2, test::channels_may_interleave_differently, {.backend = GetParam()});
}

TEST_P(GroupOn, RanksThatDivergeAreToldWhoWaitsForWhat) {
  const auto outcomes =
      outcomes_of_ranks(2, test::ranks_diverge, {.timeout = std::chrono::seconds(3), .backend = GetParam()});
  EXPECT_EQ(outcomes[0].exit_code, 1);
  EXPECT_EQ(outcomes[1].exit_code, 1);
  const std::string both = outcomes[0].output + outcomes[1].output;
  // The first to give up still finds the other waiting; the second may find it gone.
  EXPECT_THAT(both, HasSubstr("did not join the all-gather of 'layers."));
  EXPECT_THAT(both, HasSubstr("is waiting in the all-gather of 'layers."));
}

TEST_P(GroupOn, ARankThatDiesIsNamedAtOnce) {
  const auto outcomes = outcomes_of_ranks(2, test::rank_1_dies, {.backend = GetParam()});
  EXPECT_EQ(outcomes[1].exit_code, 128 + SIGKILL);
  EXPECT_EQ(outcomes[0].exit_code, 1);
  EXPECT_THAT(outcomes[0].output, HasSubstr("rank 1"));
  EXPECT_THAT(outcomes[0].output, testing::AnyOf(HasSubstr("went away"), HasSubstr("is gone")));
}

// What is written to a connection that its other end has closed must not be this process's end (SIGPIPE).
TEST(Group, ARankThatDiesWhileItIsSentToIsAnError) {
  const auto outcomes = outcomes_of_ranks(2,
                                          [](const test::World& world) {
                                            world->barrier("all are there");
                                            if (world->rank() == 1) raise(SIGKILL);
                                            for (int i = 0; i < 20'000; ++i)
                                              world->start_send(at::ones({1}), 1, "message");
                                            FAIL() << "every message was sent";
                                          },
                                          {.backend = "gloo"});
  EXPECT_EQ(outcomes[0].exit_code, 1);
  EXPECT_THAT(outcomes[0].output, HasSubstr("rank 1"));
  EXPECT_THAT(outcomes[0].output, Not(HasSubstr("every message was sent")));
}

TEST(Group, ABarrierNamesTheMissingRank) {
  const auto outcomes = outcomes_of_ranks(3,
                                          [](std::shared_ptr<Group> world) {
                                            if (world->rank() == 2)
                                              std::this_thread::sleep_for(std::chrono::seconds(4));
                                            world->barrier("the save");
                                          },
                                          {.timeout = std::chrono::seconds(2)});
  EXPECT_THAT(outcomes[0].output, HasSubstr("rank 2 did not reach 'the save' within 2.00 s"));
}

}  // namespace
}  // namespace tessera::comm::group_test

// What is said of a hang, from what ranks say of themselves; and what real ranks that hang say.
#include "tessera/comm/hang_report.h"

#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <nlohmann/json.hpp>

#include "tessera/base/activity.h"
#include "tessera/comm/group.h"
#include "tests/support/spawn_ranks.h"

namespace tessera::comm::hang_report_test {

// What ranks of a test tell each other past the run.
struct Signs {
  std::atomic<int> failed = 0;     // ranks that have their error
  std::atomic<pid_t> stopped = 0;  // the process of the one that is stopped
};

Signs& new_signs() {
  void* const page = mmap(nullptr, sizeof(Signs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return *new (page) Signs;
}

// Names that no other function has: where the main threads of hanging ranks are.
__attribute__((noinline)) void sleeps_where_a_test_looks(const Signs& signs) {
  while (signs.failed < 2) usleep(20'000);
}
__attribute__((noinline)) void gathers_where_a_test_looks(Group& group, const std::string& label) {
  auto full = at::ones({static_cast<int64_t>(group.size())});
  group.start_all_gather(full, full.narrow(0, group.rank(), 1), label).finish();
  EXPECT_EQ(full.numel(), group.size());
}

namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

RankState waiting(int rank, const std::string& operation, int64_t number, const std::string& group = "",
                  const std::string& channel = "/gathers0") {
  return {.rank = rank,
          .host = "gpu01",
          .process = 100 + rank,
          .waits = {{.awaited = {.operation = operation, .group = group, .channel = channel, .number = number},
                     .lasted = std::chrono::seconds(12)}},
          .frames = {"poll (libc.so.6)", "main (train)"}};
}

RankState busy(int rank, const std::string& activity) {
  return {
      .rank = rank,
      .host = "gpu02",
      .process = 100 + rank,
      .last = RankState::Wait{.awaited = {.operation = "all-reduce of 'norm'", .group = "", .channel = "", .number = 7},
                              .lasted = std::chrono::seconds(9)},
      .activity = activity,
      .busy = std::chrono::seconds(8)};
}

TEST(HangReport, ARankThatCalledFewerCollectivesIsBehind) {
  const std::string said =
      hang_conclusion({waiting(0, "all-gather of 'layers.3'", 1277), waiting(1, "all-gather of 'layers.1'", 1275),
                       waiting(2, "all-gather of 'layers.3'", 1277)});
  EXPECT_EQ(said,
            "rank 1 is behind: ranks 0, 2 are waiting in the all-gather of 'layers.3' (number 1277); rank 1 is waiting "
            "in the all-gather of 'layers.1' (number 1275)");
}

TEST(HangReport, RanksThatCalledDifferentCollectivesAreTold) {
  EXPECT_EQ(hang_conclusion({waiting(0, "all-gather of 'a'", 5), waiting(1, "all-gather of 'b'", 5)}),
            "ranks called different collectives: rank 0 is waiting in the all-gather of 'a' (number 5); rank 1 is "
            "waiting in the all-gather of 'b' (number 5)");
}

TEST(HangReport, NumbersOfDifferentGroupsAreNotCompared) {
  EXPECT_THAT(hang_conclusion({waiting(0, "all-gather of 'a'", 5, "tp", "/tp[0 1]0"),
                               waiting(1, "all-gather of 'a'", 3, "dp_shard", "/dp_shard[1 3]0")}),
              AllOf(HasSubstr("ranks wait for each other in different places"), HasSubstr("in group tp"),
                    Not(HasSubstr("behind"))));
}

TEST(HangReport, WhoIsInNoCollectiveIsWaitedFor) {
  EXPECT_EQ(hang_conclusion({waiting(0, "all-gather of 'a'", 5), busy(1, "next batches"), busy(2, "next batches")}),
            "ranks 1, 2 are not waiting in a collective: at 'next batches'; the others wait for that");
  EXPECT_THAT(hang_conclusion({waiting(0, "all-gather of 'a'", 5), busy(1, "")}),
              HasSubstr("elsewhere in the program"));
}

TEST(HangReport, WhoDoesNotAnswerIsNamedBeforeAllElse) {
  RankState silent{.rank = 1, .answers = false};
  EXPECT_EQ(hang_conclusion({waiting(0, "all-gather of 'a'", 5), silent}),
            "rank 1 does not answer: stopped, too busy, or gone");
}

TEST(HangReport, WhereAllWaitForTheSameTheNetworkIsToBlame) {
  EXPECT_THAT(hang_conclusion({waiting(0, "all-gather of 'a'", 5), waiting(1, "all-gather of 'a'", 5)}),
              HasSubstr("look at the network"));
}

TEST(HangReport, TheTableHasARowForRanksThatDoTheSameAndTheirStackOnce) {
  std::vector<RankState> states;
  for (int rank = 0; rank < 6; ++rank) states.push_back(waiting(rank, "all-gather of 'layers.3'", 1277, "dp_shard"));
  states[2] = busy(2, "next batches");
  states[5] = {.rank = 5, .answers = false};
  EXPECT_EQ(hang_report(states), R"(  rank        host   waits for                 number  group     for
  0, 1, 3, 4  gpu01  all-gather of 'layers.3'  1277    dp_shard  12 s
  2           gpu02  nothing: at 'next batches' for 8.00 s; last the all-reduce of 'norm' (number 7), 9.00 s ago
  5           ?      no answer: stopped, too busy, or gone
  so: rank 5 does not answer: stopped, too busy, or gone; rank 2 is not waiting in a collective: at 'next batches'; the others wait for that
  where their main threads are, innermost first:
    ranks 0, 1, 3, 4
      poll (libc.so.6)
      main (train)
    rank 2, process 102
      its main thread did not say)");
}

TEST(HangReport, RanksThatHoldPartsOfAModelAreNamedWithTheirPlaces) {
  std::vector<RankState> states = {waiting(0, "all-gather of 'a'", 5),
                                   busy(1, "next batches"),
                                   waiting(2, "all-gather of 'a'", 5),
                                   {.rank = 3, .answers = false}};
  for (RankState& state : states) state.place = fmt::format("dp_shard {}, tp {}", state.rank / 2, state.rank % 2);
  EXPECT_EQ(hang_conclusion(states),
            "rank 3 (dp_shard 1, tp 1) does not answer: stopped, too busy, or gone; rank 1 (dp_shard 0, tp 1) is not "
            "waiting in a collective: at 'next batches'; the others wait for that");
  EXPECT_THAT(hang_report(states), AllOf(HasSubstr("  0 (dp_shard 0, tp 0), 2 (dp_shard 1, tp 0)  gpu01  all-gather"),
                                         HasSubstr("  3 (dp_shard 1, tp 1)                        ?      no answer"),
                                         HasSubstr("    rank 1 (dp_shard 0, tp 1), process 101\n")));
}

TEST(HangReport, RanksAreListedInFewWords) {
  EXPECT_EQ(ranks_in_words({3}), "rank 3");
  EXPECT_EQ(ranks_in_words({0, 1, 2, 5, 7, 8}), "ranks 0 to 2, 5, 7, 8");
  EXPECT_EQ(ranks_in_words({0, 1, 2}, {"tp 0", "tp 1", "tp 2"}), "ranks 0 (tp 0), 1 (tp 1), 2 (tp 2)");
}

TEST(HangReport, WhatARankSaysComesOutAsItWentIn) {
  for (RankState state : {waiting(3, "all-gather of 'a'", 5, "tp"), busy(1, "step")}) {
    state.script = "File \"train.py\", line 3\n";
    EXPECT_EQ(json_of(rank_state_of(json_of(state))), json_of(state));
  }
  EXPECT_ANY_THROW(rank_state_of(nlohmann::json::parse(R"({"rank": "three"})")));
}

class HangOn : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, HangOn, testing::Values("gloo", "shm"), [](const auto& info) { return info.param; });

// Three ranks: `culprit` hangs as `hang` says, until the others, which do `work`, have failed.
std::vector<test::RankOutcome> outcomes_of_hang(int culprit, const std::string& backend,
                                                const std::function<void(Group&)>& work,
                                                const std::function<void(Group&, Signs&)>& hang) {
  Signs& signs = new_signs();
  return test::outcomes_of_ranks(3,
                                 [&](const std::shared_ptr<Group>& world) {
                                   gathers_where_a_test_looks(*world, "layers.0");
                                   if (world->rank() == culprit) return hang(*world, signs);
                                   try {
                                     work(*world);
                                   } catch (const std::exception&) {
                                     ++signs.failed;
                                     if (signs.failed == 2 && signs.stopped != 0) kill(signs.stopped, SIGKILL);
                                     throw;
                                   }
                                 },
                                 {.timeout = std::chrono::seconds(2), .backend = backend});
}

int count_of_reports(const std::vector<test::RankOutcome>& outcomes) {
  int count = 0;
  for (const auto& outcome : outcomes) {
    for (size_t at = 0; (at = outcome.output.find("What each rank waits for", at)) != std::string::npos; ++at) ++count;
  }
  return count;
}

std::string all_output(const std::vector<test::RankOutcome>& outcomes) {
  std::string all;
  for (const auto& outcome : outcomes) all += outcome.output;
  return all;
}

TEST_P(HangOn, IsReportedOnceWithWhatEachRankDoesAndWhere) {
  const auto outcomes = outcomes_of_hang(
      2, GetParam(), [](Group& world) { gathers_where_a_test_looks(world, "layers.1"); },
      [](Group& /*world*/, Signs& signs) {
        const Activity activity("next batches");
        sleeps_where_a_test_looks(signs);
      });
  const std::string all = all_output(outcomes);
  EXPECT_EQ(count_of_reports(outcomes), 1) << all;
  EXPECT_THAT(all, HasSubstr("rank 2 is not waiting in a collective: at 'next batches'; the others wait for that"));
  EXPECT_THAT(all, testing::ContainsRegex("0, 1 +[^ ]+ +all-gather of 'layers.1' +1 +world"));
  EXPECT_THAT(
      all, testing::ContainsRegex("2 +[^ ]+ +nothing: at 'next batches' for [^;]+; last the all-gather of 'layers.0' "
                                  "\\(number 0\\)"));
  EXPECT_THAT(all, HasSubstr("gathers_where_a_test_looks ("));
  EXPECT_THAT(all, HasSubstr("sleeps_where_a_test_looks ("));
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(outcomes[rank].exit_code, 1);
    EXPECT_THAT(outcomes[rank].output, HasSubstr("the others wait for that"));  // both are told
  }
}

TEST_P(HangOn, ARankThatLeftOutACollectiveIsToldApart) {
  const auto gather_both = [](Group& world) {
    gathers_where_a_test_looks(world, "layers.1");
    gathers_where_a_test_looks(world, "layers.2");
  };
  const auto outcomes = outcomes_of_hang(1, GetParam(), gather_both,
                                         [](Group& world, Signs&) { gathers_where_a_test_looks(world, "layers.2"); });
  EXPECT_THAT(all_output(outcomes), HasSubstr("ranks called different collectives: ranks 0, 2 are waiting in the "
                                              "all-gather of 'layers.1' (number 1); rank 1 is waiting in the "
                                              "all-gather of 'layers.2' (number 1)"));
}

TEST_P(HangOn, AStoppedRankDoesNotAnswer) {
  const auto outcomes = outcomes_of_hang(
      1, GetParam(), [](Group& world) { gathers_where_a_test_looks(world, "layers.1"); },
      [](Group& /*world*/, Signs& signs) {
        signs.stopped = getpid();
        raise(SIGSTOP);
      });
  EXPECT_EQ(outcomes[1].exit_code, 128 + SIGKILL);
  EXPECT_THAT(all_output(outcomes), HasSubstr("rank 1 does not answer: stopped, too busy, or gone"));
}

TEST_P(HangOn, ABarrierThatNotAllComeToIsReportedToo) {
  const auto outcomes = outcomes_of_hang(
      2, GetParam(), [](Group& world) { world.barrier("the save"); },
      [](Group& /*world*/, Signs& signs) { sleeps_where_a_test_looks(signs); });
  const std::string all = all_output(outcomes);
  EXPECT_EQ(count_of_reports(outcomes), 1) << all;
  EXPECT_THAT(all, HasSubstr("rank 2 did not reach 'the save' within 2.00 s; rank 2 is not waiting in a collective: "
                             "elsewhere in the program; the others wait for that"));
  EXPECT_THAT(all, testing::ContainsRegex("0, 1 +[^ ]+ +exchange of 'the save' +0 +world"));
}

}  // namespace
}  // namespace tessera::comm::hang_report_test

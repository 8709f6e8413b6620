#include "tessera/launch/rank_exit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tessera/launch/failure_report.h"

namespace tessera::launch::rank_exit_test {
namespace {

using ::testing::HasSubstr;

int blamed(std::initializer_list<RankExit> exits) { return index_to_blame(std::vector<RankExit>(exits)); }

TEST(RankExit, WordsNameTheSignalAndWhatItMeans) {
  EXPECT_EQ(exit_words({.signal = SIGKILL}), "was killed by SIGKILL, probably out of memory");
  EXPECT_EQ(exit_words({.code = 3}), "exited with code 3");
  EXPECT_EQ(exit_words({.signal = SIGUSR1, .core_dumped = true}), "was killed by SIGUSR1 (core dumped)");
}

TEST(RankExit, ACodeAbove128TellsOfASignalBelowAShell) {
  EXPECT_THAT(exit_words({.code = 128 + SIGKILL}), HasSubstr("killed by SIGKILL, probably out of memory"));
  EXPECT_EQ(exit_words({.code = 255}), "exited with code 255");  // 127 is no signal
}

TEST(RankExit, TheCodeToLeaveWithIsThatOfAShell) {
  EXPECT_EQ(exit_code_of({.code = 7}), 7);
  EXPECT_EQ(exit_code_of({.signal = SIGSEGV}), 139);
}

TEST(RankExit, OfExitsAtTheSameMomentASignalIsBlamedBeforeACode) {
  EXPECT_EQ(blamed({{.code = 1}, {.signal = SIGKILL}}), 1);
  EXPECT_EQ(blamed({{.code = 0}, {.code = 1}, {.code = 2}}), 1);
  EXPECT_EQ(blamed({{.code = 0}}), -1);
}

TEST(RankExit, AnAbortMayBeTheConsequenceOfALostPeer) {
  EXPECT_EQ(blamed({{.signal = SIGABRT}, {.signal = SIGSEGV}}), 1);
  EXPECT_EQ(blamed({{.code = 1}, {.signal = SIGABRT}}), 0);
}

TEST(FailureReport, SaysHowMuchMemoryTheRankHeld) {
  const RankFailure failure{.rank = 1,
                            .pid = 4711,
                            .exit = {.signal = SIGKILL},
                            .after_start = std::chrono::seconds(14),
                            .memory = {.resident_bytes = 21'300'000'000, .peak_resident_bytes = 21'900'000'000},
                            .memory_limit_bytes = 23'000'000'000,
                            .command = {"./train", "--steps"},
                            .last_lines = {"step 8"}};
  EXPECT_EQ(failure_sentence(failure),
            "rank 1 was killed by SIGKILL, probably out of memory: resident 21.3 GB (peak 21.9 GB) of 23.0 GB, "
            "14 s after start");
  EXPECT_THAT(failure_report(failure, ""),
              HasSubstr("  where: process 4711: ./train --steps\n  its last line:\n    step 8\n"));
}

}  // namespace
}  // namespace tessera::launch::rank_exit_test

#include "tessera/launch/rank_exit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <deque>
#include <string>

#include "tessera/launch/failure_report.h"

namespace tessera::launch::rank_exit_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int blamed(std::initializer_list<RankExit> exits) { return index_to_blame(std::vector<RankExit>(exits)); }

TEST(RankExit, WordsNameTheSignalAndWhatItMeans) {
  EXPECT_EQ(exit_words({.signal = SIGSEGV}), "was killed by SIGSEGV, an access to memory it does not own");
  EXPECT_EQ(exit_words({.code = 3}), "exited with code 3");
  EXPECT_EQ(exit_words({.signal = SIGUSR1, .core_dumped = true}), "was killed by SIGUSR1 (core dumped)");
}

TEST(RankExit, ACodeAbove128TellsOfASignalBelowAShell) {
  EXPECT_EQ(exit_words({.code = 128 + SIGKILL}),
            "exited with code 137: a command it ran was killed by SIGKILL, sent by the system when memory runs out, by "
            "a scheduler or by a person");
  EXPECT_EQ(exit_words({.code = 128 + SIGKILL}, /*memory_ran_out=*/true),
            "exited with code 137: a command it ran was killed by SIGKILL, probably out of memory");
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

TEST(RankExit, AKilledOneRanOutOfMemoryOnlyWhereTheKernelHasKilledForThat) {
  EXPECT_EQ(exit_words({.signal = SIGKILL}),
            "was killed by SIGKILL, sent by the system when memory runs out, by a scheduler or by a person");
  EXPECT_EQ(exit_words({.signal = SIGKILL}, /*memory_ran_out=*/true), "was killed by SIGKILL, probably out of memory");
  EXPECT_EQ(exit_words({.signal = SIGTERM}, /*memory_ran_out=*/true), "was killed by SIGTERM, it was asked to stop");
}

TEST(FailureReport, SaysHowMuchMemoryTheRankHeld) {
  RankFailure failure{.rank = 1,
                      .pid = 4711,
                      .exit = {.signal = SIGKILL},
                      .after_start = std::chrono::seconds(14),
                      .memory = {.resident_bytes = 21'300'000'000, .peak_resident_bytes = 21'900'000'000},
                      .memory_limit_bytes = 23'000'000'000,
                      .out_of_memory_kills = 1,
                      .command = {"./train", "--steps"},
                      .last_lines = {"step 8"}};
  EXPECT_EQ(failure_sentence(failure),
            "rank 1 was killed by SIGKILL, probably out of memory: resident 21.3 GB (peak 21.9 GB) of 23.0 GB, "
            "14 s after start");
  EXPECT_THAT(failure_report(failure, ""),
              HasSubstr("  where: process 4711: ./train --steps\n  its last line:\n    step 8\n"));
  EXPECT_THAT(failure_report(failure, ""), HasSubstr("  the kernel has killed 1 process on this machine for lack"));
  failure.out_of_memory_kills = 0;
  EXPECT_EQ(failure_sentence(failure),
            "rank 1 was killed by SIGKILL, sent by the system when memory runs out, by a scheduler or by a person: "
            "resident 21.3 GB (peak 21.9 GB) of 23.0 GB, 14 s after start");
}

std::string report_of(const RankExit& exit, std::deque<std::string> last_lines = {}) {
  return failure_report(
      {.rank = 1, .pid = 4711, .exit = exit, .command = {"train"}, .last_lines = std::move(last_lines)}, "");
}

TEST(FailureReport, SaysWhichRanksHadEndedWellBefore) {
  RankFailure failure{.rank = 1, .exit = {.code = 1}, .ended_before = {0, 3}};
  EXPECT_THAT(failure_report(failure, ""), HasSubstr("  before: ranks 0, 3 had ended well, with code 0\n"));
  failure.ended_before.resize(9);
  EXPECT_THAT(failure_report(failure, ""), HasSubstr("  before: 9 ranks had ended well, with code 0\n"));
  failure.ended_before.clear();
  EXPECT_THAT(failure_report(failure, ""), Not(HasSubstr("before:")));
}

TEST(FailureReport, SaysWhatToDoAboutASignal) {
  EXPECT_THAT(report_of({.signal = SIGKILL}), HasSubstr("'tessera estimate' says how much a run needs"));
  EXPECT_THAT(report_of({.code = 128 + SIGKILL}), HasSubstr("'tessera estimate' says how much a run needs"));
  EXPECT_THAT(report_of({.signal = SIGBUS}), HasSubstr("--shm-size"));
  EXPECT_THAT(report_of({.signal = SIGILL}), HasSubstr("built for a newer processor"));
  EXPECT_THAT(report_of({.signal = SIGTERM}), Not(HasSubstr("fix:")));
}

TEST(FailureReport, NamesASharedLibraryThatTheLoaderDidNotFind) {
  const std::string report =
      report_of({.code = 127}, {"tessera: error while loading shared libraries: libcudart.so.12: "
                                "cannot open shared object file: No such file or directory"});
  EXPECT_THAT(report, HasSubstr("  so:    it did not find the shared library libcudart.so.12\n"));
  EXPECT_THAT(report, HasSubstr("module load cuda"));
  EXPECT_THAT(report_of({.code = 1}, {"ImportError: libmpi.so.40: cannot open shared object file: No such file"}),
              HasSubstr("module load openmpi"));
  EXPECT_THAT(report_of({.code = 1}, {"ImportError: libmpi.so.12: cannot open shared object file: No such file"}),
              HasSubstr("module load mpich"));
  EXPECT_THAT(report_of({.code = 1}, {"OSError: libodd.so: cannot open shared object file: No such file"}),
              HasSubstr("'ldd' shows"));
}

TEST(FailureReport, NamesAVersionThatALibraryDoesNotHave) {
  const std::string report = report_of(
      {.code = 1},
      {"tessera: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by tessera)"});
  EXPECT_THAT(report, HasSubstr("its library /lib/x86_64-linux-gnu/libstdc++.so.6 has no version GLIBCXX_3.4.30"));
  EXPECT_THAT(report, HasSubstr("module load gcc"));
  EXPECT_THAT(report_of({.code = 1}, {"x: /lib/libc.so.6: version `GLIBC_2.38' not found (required by x)"}),
              HasSubstr("scripts/bundle"));
}

TEST(FailureReport, NamesAModuleThatPythonDidNotFind) {
  const std::string report =
      report_of({.code = 1}, {"Traceback (most recent call last):", "  File \"train.py\", line 1, in <module>",
                              "ModuleNotFoundError: No module named 'sklearn.metrics'"});
  EXPECT_THAT(report, HasSubstr("its Python has no module 'sklearn.metrics'"));
  EXPECT_THAT(report, HasSubstr("pip install scikit-learn"));
  EXPECT_THAT(report_of({.code = 1}, {"/usr/bin/python3: No module named tools.train"}),
              HasSubstr("its Python has no module 'tools.train'"));
}

TEST(FailureReport, DoesNotTakeOtherLastWordsForThat) {
  EXPECT_THAT(
      report_of({.code = 1}, {"warning: No module named 'triton'", "step 1", "step 2", "step 3", "step 4", "oh no"}),
      Not(HasSubstr("so:")));
  EXPECT_THAT(report_of({.code = 1}, {"No module named as this one here", ""}), Not(HasSubstr("so:")));
}

}  // namespace
}  // namespace tessera::launch::rank_exit_test

// What launchers of two hosts say to each other within the output of ranks, and what is made of a host that is gone.
#include "tessera/launch/host_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tessera/launch/failure_report.h"

namespace tessera::launch::host_line_test {
namespace {

using ::testing::HasSubstr;

const std::string kFailed = failed_mark({.rank = 3, .exit = {.code = 0, .signal = SIGKILL}});

TEST(HostLine, MarksAreTakenOutWhereverReadsCutThem) {
  const std::string text = "step 1\nst" + alive_mark() + "ep 2" + kFailed + alive_mark() + "\r\n";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    MarkFilter filter;
    std::string plain;
    for (size_t at = 0; at < text.size(); at += piece) plain += filter.take(text.substr(at, piece));
    EXPECT_EQ(plain + filter.finish(), "step 1\nstep 2\r\n") << piece;
    const auto told = filter.next_failure();
    ASSERT_TRUE(told);
    EXPECT_EQ(told->rank, 3);
    EXPECT_EQ(told->exit.signal, SIGKILL);
    EXPECT_FALSE(filter.next_failure());
  }
}

TEST(HostLine, WhatOnlyLooksLikeAMarkIsLeftAsItIs) {
  for (const std::string text :
       {"\033[31mred\033[0m", "\033_of another\033\\",
        "\033_tessera without an end of its own, and on and on and on and on", "\033_tessera", "\033", "\033\033_"}) {
    MarkFilter filter;
    std::string plain;
    for (const char byte : text) plain += filter.take(std::string_view(&byte, 1));
    EXPECT_EQ(plain + filter.finish(), text);
    EXPECT_FALSE(filter.found_one());
  }
}

RankFailure of_host(const std::string& name, int rank_there, RankExit exit) {
  return {.name = name, .elsewhere = true, .rank_there = rank_there, .was_heard = true, .exit = exit};
}

TEST(HostLine, TheCauseGoesBeforeItsConsequences) {
  const RankFailure killed = of_host("b", 3, {.signal = SIGKILL});
  const RankFailure lost = of_host("b", -1, {.code = 255});
  const RankFailure disk_full = of_host("b", 3, {.code = 2});
  const RankFailure lost_another = of_host("a", 0, {.code = 1});
  const RankFailure aborted = of_host("a", 0, {.signal = SIGABRT});
  const std::vector<RankFailure> by_gravity = {killed, lost, disk_full, lost_another};
  for (size_t i = 0; i < by_gravity.size(); ++i) {
    for (size_t j = 0; j < by_gravity.size(); ++j) EXPECT_EQ(goes_before(by_gravity[i], by_gravity[j]), i < j);
  }
  EXPECT_FALSE(goes_before(aborted, lost_another));
}

TEST(HostLine, AReportNamesTheRankOfAHostOrTheHost) {
  EXPECT_THAT(failure_report(of_host("b", 3, {.code = 7}), ""), HasSubstr("error: rank 3 on b exited with code 7"));
  EXPECT_THAT(failure_report(of_host("b", -1, {.code = 255}), ""), HasSubstr("error: b lost its connection"));
  RankFailure silent = of_host("b", -1, {.code = 255});
  silent.silent_for = std::chrono::seconds(12);
  EXPECT_THAT(failure_report(silent, ""), HasSubstr("error: host b has not been heard of for 12 s"));
  silent.all_are_silent = true;
  EXPECT_THAT(failure_report(silent, ""), HasSubstr("look at the network of this one first"));
  silent.was_heard = false;
  EXPECT_THAT(failure_report(silent, ""), HasSubstr("host b has not started its launcher within 12 s"));
}

}  // namespace
}  // namespace tessera::launch::host_line_test

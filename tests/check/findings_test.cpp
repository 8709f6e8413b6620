// What is wrong, by what ranks say: every case on one machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tessera/check/clocks.h"
#include "tessera/check/host_card.h"
#include "tessera/check/links.h"
#include "tessera/check/same_files.h"

namespace tessera::check {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

HostCard card(int rank, const std::string& host) {
  return {.rank = rank,
          .host = host,
          .identity = host,
          .version = "1.0",
          .libtorch = "2.13.0",
          .instructions = "avx2",
          .memory_bytes = 64ULL << 30,
          .available_bytes = 60ULL << 30,
          .shared_memory_bytes = 8ULL << 30,
          .free_shared_memory_bytes = 8ULL << 30};
}

std::vector<HostCard> two_hosts() { return {card(0, "node1"), card(1, "node1"), card(2, "node2"), card(3, "node2")}; }

TEST(HostCards, GoAsTextsAndComeBack) {
  HostCard sent = card(3, "node2");
  sent.warnings = {"few files"};
  const HostCard got = card_of(card_text(sent));
  EXPECT_EQ(card_text(got), card_text(sent));
  EXPECT_EQ(got.rank, 3);
  EXPECT_THAT(got.warnings, ElementsAre("few files"));
}

TEST(HostCards, WhatAgreesIsNoFinding) {
  EXPECT_THAT(compare_cards(two_hosts()), IsEmpty());
  EXPECT_THAT(first_ranks(two_hosts()), ElementsAre(0, 2));
}

TEST(HostCards, AnotherVersionIsAProblemThatNamesTheRank) {
  auto cards = two_hosts();
  cards[2].version = "0.9";
  cards[3].libtorch = "2.11.0";
  const Findings found = compare_cards(cards);
  ASSERT_THAT(found, SizeIs(2));
  EXPECT_EQ(found[0].kind, Finding::Kind::kProblem);
  EXPECT_EQ(found[0].what, "rank 2 (node2) runs Tessera 0.9, rank 0 (node1) 1.0");
  EXPECT_EQ(found[1].what, "rank 3 (node2) runs with LibTorch 2.11.0, rank 0 (node1) 2.13.0");
}

TEST(HostCards, OtherInstructionsAreAWarning) {
  auto cards = two_hosts();
  cards[3].instructions = "default";
  const Findings found = compare_cards(cards);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Finding::Kind::kWarning);
  EXPECT_THAT(found[0].what, HasSubstr("rank 3 (node2) computes with default"));
}

TEST(HostCards, AFullSharedMemoryIsToldOnceAHostBeforeABusErrorDoes) {
  auto cards = two_hosts();
  cards[2].free_shared_memory_bytes = cards[3].free_shared_memory_bytes = kLeastSharedMemory - 1;
  const Findings found = compare_cards(cards);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Finding::Kind::kProblem);
  EXPECT_THAT(found[0].what, testing::AllOf(HasSubstr("/dev/shm of node2 is full"), HasSubstr("Bus error")));
}

// Asked at 10 s and answered at 12 s by rank 0's clock: the other clock is read at 11 s. A shorter trip counts more.
TEST(Clocks, TheMiddleOfTheShortestTripIsTheTime) {
  constexpr int64_t kSecond = 1'000'000'000;
  const RoundTrip trips[] = {{10 * kSecond, 99 * kSecond, 20 * kSecond}, {10 * kSecond, 18 * kSecond, 12 * kSecond}};
  const ClockOffset offset = offset_of(2, trips);
  EXPECT_DOUBLE_EQ(offset.seconds, 7);
  EXPECT_DOUBLE_EQ(offset.uncertainty, 1);
}

TEST(Clocks, OnlyWhatIsCertainlyFarIsToldOf) {
  const auto of = [](double seconds, double uncertainty) {
    return judge_clocks({{.rank = 2, .seconds = seconds, .uncertainty = uncertainty}}, two_hosts());
  };
  EXPECT_THAT(of(0.9, 0), IsEmpty());
  EXPECT_THAT(of(1.5, 0.6), IsEmpty());
  ASSERT_THAT(of(-7, 0.1), SizeIs(1));
  EXPECT_THAT(of(-7, 0.1)[0].what, HasSubstr("the clock of node2 is 7.00 s behind that of node1"));
}

TEST(Links, OfFewHostsEveryPairAndOfManyARing) {
  using Pair = std::pair<int, int>;
  EXPECT_THAT(pairs_to_measure(two_hosts()), ElementsAre(Pair{0, 2}));
  EXPECT_THAT(pairs_to_measure({card(0, "a"), card(1, "a"), card(2, "a")}),
              ElementsAre(Pair{0, 1}, Pair{0, 2}, Pair{1, 2}));
  EXPECT_THAT(pairs_to_measure({card(0, "a")}), IsEmpty());
  std::vector<HostCard> many;
  for (int rank = 0; rank < 10; ++rank) many.push_back(card(rank, "node" + std::to_string(rank)));
  const auto ring = pairs_to_measure(many);
  ASSERT_THAT(ring, SizeIs(10));
  EXPECT_EQ(ring.back(), Pair(9, 0));
}

TEST(Links, OneWithLessThanHalfOfTheFastestIsNamed) {
  const std::vector<HostCard> cards = {card(0, "node1"), card(1, "node2"), card(2, "node3")};
  const LinkSpeed good{.from = 0, .to = 1, .there = 100e6, .back = 101e6};
  const LinkSpeed fair{.from = 0, .to = 2, .there = 60e6, .back = 100e6};
  const LinkSpeed bad{.from = 1, .to = 2, .there = 100e6, .back = 49e6};
  const Findings found = judge_links({good, fair, bad}, cards);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, Finding::Kind::kWarning);
  EXPECT_THAT(found[0].what, HasSubstr("rank 1 (node2) and rank 2 (node3) exchange 49.0 MB/s"));
}

class Files : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const auto path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }
  ~Files() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("tessera-check-" + std::to_string(getpid()));
};

TEST_F(Files, AreFoundBelowFoldersInOneOrder) {
  const std::string b = write("model/b", "1"), a = write("model/a/c", "2"), none = (folder_ / "none").string();
  EXPECT_THAT(files_below({none, (folder_ / "model").string()}), ElementsAre(none, a, b));
}

TEST_F(Files, SumsTellTextsOfOneSizeApart) {
  const FileState one = sum_of_file(write("one", "abc")), same = sum_of_file(write("same", "abc")),
                  other = sum_of_file(write("other", "abd"));
  EXPECT_EQ(one, same);
  EXPECT_EQ(one.bytes, other.bytes);
  EXPECT_NE(one.sum, other.sum);
  EXPECT_EQ(sum_of_file((folder_ / "none").string()).kind, FileState::Kind::kMissing);
}

// One block from the first byte, one to the last, whatever stands between.
TEST_F(Files, OfAVeryLargeOneBothEndsAreRead) {
  const std::string path = write("large", "");
  std::filesystem::resize_file(path, 2 * kReadWhole + 1);  // holes take no room
  const FileState empty = sum_of_file(path);
  std::fstream(path, std::ios::in | std::ios::out).seekp(static_cast<std::streamoff>(2 * kReadWhole)).put('x');
  EXPECT_NE(sum_of_file(path).sum, empty.sum);
}

}  // namespace
}  // namespace tessera::check

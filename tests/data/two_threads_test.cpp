#include "tessera/data/two_threads.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace tessera::data::two_threads_test {
namespace {

std::multiset<std::pair<size_t, size_t>> calls_for(size_t count) {
  std::mutex mutex;
  std::multiset<std::pair<size_t, size_t>> calls;
  on_two_threads(count, [&](size_t from, size_t to) {
    const std::lock_guard lock(mutex);
    calls.emplace(from, to);
  });
  return calls;
}

// Who keeps a result for the half that begins at 0 would have two of them write it, were an empty half called for.
TEST(OnTwoThreads, CallsForNoHalfWithoutItems) {
  using Calls = std::multiset<std::pair<size_t, size_t>>;
  EXPECT_EQ(calls_for(0), Calls{});
  EXPECT_EQ(calls_for(1), (Calls{{0, 1}}));
  EXPECT_EQ(calls_for(2), (Calls{{0, 1}, {1, 2}}));
  EXPECT_EQ(calls_for(5), (Calls{{0, 2}, {2, 5}}));
}

TEST(OnTwoThreads, ThrowsWhatTheFirstHalfThrewAfterBothHaveEnded) {
  std::vector<int> done(4);
  const auto fail_at = [&](size_t bad) {
    on_two_threads(4, [&](size_t from, size_t to) {
      for (size_t i = from; i < to; ++i) ++done[i];
      if (from <= bad && bad < to) throw std::runtime_error("item " + std::to_string(bad));
    });
  };
  EXPECT_THROW(fail_at(0), std::runtime_error);
  EXPECT_THROW(fail_at(3), std::runtime_error);
  EXPECT_EQ(done, (std::vector<int>{2, 2, 2, 2}));
}

TEST(MadeOnTwoThreads, IsInTheItemsOrder) {
  const auto twice = [](int item) { return 2 * item; };
  EXPECT_EQ(made_on_two_threads(std::vector<int>{}, twice), std::vector<int>{});
  EXPECT_EQ(made_on_two_threads(std::vector<int>{4}, twice), std::vector<int>{8});
  EXPECT_EQ(made_on_two_threads(std::vector<int>{3, 1, 2}, twice), (std::vector<int>{6, 2, 4}));
}

}  // namespace
}  // namespace tessera::data::two_threads_test

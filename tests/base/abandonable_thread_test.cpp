#include "tessera/base/abandonable_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>

namespace tessera::abandonable_thread_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

TEST(AbandonableThread, RunsOneCallAfterTheOther) {
  AbandonableThread thread;
  std::thread::id first, second;
  EXPECT_TRUE(thread.run([&] { first = std::this_thread::get_id(); }, minutes(1)));
  EXPECT_TRUE(thread.run([&] { second = std::this_thread::get_id(); }, minutes(1)));
  EXPECT_EQ(first, second);
  EXPECT_NE(first, std::this_thread::get_id());
}

TEST(AbandonableThread, ThrowsWhatTheCallThrowsAndGoesOn) {
  AbandonableThread thread;
  EXPECT_THROW(thread.run([] { throw std::out_of_range("of the call"); }, minutes(1)), std::out_of_range);
  EXPECT_TRUE(thread.run([] {}, minutes(1)));
}

TEST(AbandonableThread, LeavesACallBehindAndRunsNoneAfterIt) {
  std::promise<void> never;
  const std::shared_future<void> answer = never.get_future().share();
  std::atomic<bool> ran_again = false;
  {
    AbandonableThread thread;
    EXPECT_FALSE(thread.run([answer] { answer.wait(); }, milliseconds(20)));
    EXPECT_FALSE(thread.run([&] { ran_again = true; }, minutes(10)));
  }
  EXPECT_FALSE(ran_again);
  never.set_value();
}

// What a call that is left behind holds lives until it returns.
TEST(AbandonableThread, KeepsWhatTheCallHolds) {
  std::promise<void> end;
  const std::shared_future<void> answer = end.get_future().share();
  auto held = std::make_shared<int>(7);
  const std::weak_ptr<int> watched = held;
  {
    AbandonableThread thread;
    EXPECT_FALSE(thread.run([answer, held] { answer.wait(); }, milliseconds(20)));
    held.reset();
  }
  EXPECT_FALSE(watched.expired());
  end.set_value();
  for (int look = 0; look < 1000 && !watched.expired(); ++look) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace tessera::abandonable_thread_test

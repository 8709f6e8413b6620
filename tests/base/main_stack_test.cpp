#include "tessera/base/main_stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "tessera/base/function_names.h"

namespace tessera::main_stack_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::HasSubstr;
using testing::MatchesRegex;

// Runs on the main thread for as long as `goes_on` says; a name that no other function has.
__attribute__((noinline)) void waits_where_a_test_looks(const std::function<bool()>& goes_on) {
  while (goes_on()) poll(nullptr, 0, 5);
}

namespace {

using Wait = std::function<void(const std::function<bool()>& goes_on)>;

// What another thread sees of the main thread, which waits meanwhile.
MainStack seen_from_elsewhere(milliseconds at_most = seconds(30), const Wait& wait = waits_where_a_test_looks) {
  MainStack stack;
  std::atomic<bool> waits = false, over = false;
  std::thread other([&] {
    while (!waits) std::this_thread::yield();
    stack = main_stack(at_most);
    over = true;
  });
  wait([&] {
    waits = true;
    return !over.load();
  });
  other.join();
  return stack;
}

TEST(MainStack, NamesTheFunctionsThatTheMainThreadIsIn) {
  const MainStack stack = seen_from_elsewhere();
  ASSERT_FALSE(stack.frames.empty());
  EXPECT_THAT(stack.frames, Contains(HasSubstr("waits_where_a_test_looks (")));
  EXPECT_THAT(stack.frames, Contains(HasSubstr("main (")));
  EXPECT_EQ(stack.script, "");
}

// `depth` calls deep; what follows the call keeps it from being made a loop.
__attribute__((noinline)) void waits_far_down(int depth, const std::function<bool()>& goes_on) {
  if (depth == 0) return waits_where_a_test_looks(goes_on);
  waits_far_down(depth - 1, goes_on);
  goes_on();
}

TEST(MainStack, TellsBothEndsOfADeepStack) {
  const MainStack stack = seen_from_elsewhere(seconds(30), [](const auto& goes_on) { waits_far_down(100, goes_on); });
  EXPECT_THAT(stack.frames, Contains(HasSubstr("waits_where_a_test_looks (")));
  EXPECT_THAT(stack.frames, Contains(HasSubstr("main (")));
  EXPECT_THAT(stack.frames, Contains(MatchesRegex("… [0-9]+ more")));
  EXPECT_EQ(stack.frames.size(), 37U);
}

TEST(MainStack, MayBeAskedForAgain) {
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(seen_from_elsewhere().frames.empty());
}

TEST(MainStack, IsEmptyWhereTheThreadDoesNotAnswerInTime) {
  sigset_t signals, before;
  sigemptyset(&signals);
  sigaddset(&signals, main_stack_signal());
  pthread_sigmask(SIG_BLOCK, &signals, &before);
  EXPECT_TRUE(seen_from_elsewhere(milliseconds(50)).frames.empty());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_FALSE(seen_from_elsewhere().frames.empty());  // the late answer is not taken for this one's
}

TEST(MainStack, TakesASignalThatNobodyUses) {
  EXPECT_GE(main_stack_signal(), SIGRTMIN);
  EXPECT_LE(main_stack_signal(), SIGRTMAX);
  EXPECT_EQ(main_stack_signal(), main_stack_signal());
}

// As Python's faulthandler does: its handler writes, and calls the one before.
int script_file = -1;
struct sigaction before_script {};
void write_script(int signal) {
  EXPECT_EQ(write(script_file, "in step()\n", 10), 10);
  before_script.sa_handler(signal);
}

TEST(MainStack, CarriesWhatAnInterpreterWroteAndEachTimeThatAlone) {
  script_file = memfd_create("script", MFD_CLOEXEC);
  struct sigaction own {};
  own.sa_handler = write_script;
  sigaction(main_stack_signal(), &own, &before_script);
  set_script_stack_file(script_file);
  for (int i = 0; i < 2; ++i) {
    const MainStack stack = seen_from_elsewhere();
    EXPECT_EQ(stack.script, "in step()\n");
    EXPECT_FALSE(stack.frames.empty());
  }
  set_script_stack_file(-1);
  sigaction(main_stack_signal(), &before_script, nullptr);
}

TEST(FunctionNames, AreShortenedToWhatPeopleLookFor) {
  EXPECT_EQ(short_function_name("a::b<c<d>>(e (*)(f))::{lambda(int)#1}::operator()(g) const"),
            "a::b::{lambda#1}::operator()");
  EXPECT_EQ(short_function_name("void a::b<int>(std::vector<int, std::allocator<int>>&)"), "a::b");
  EXPECT_EQ(short_function_name("int a::b<long>(long) [clone .isra.0]"), "a::b");
  EXPECT_EQ(short_function_name("std::operator<<(std::ostream&, char)"), "std::operator<<");
  EXPECT_EQ(short_function_name("(anonymous namespace)::f(int)"), "::f");
  EXPECT_EQ(short_function_name("main"), "main");
}

TEST(FunctionNames, OfWhatIsNoCodeAreItsAddress) {
  EXPECT_EQ(function_name(reinterpret_cast<const void*>(0x10)), "0x10");
}

}  // namespace
}  // namespace tessera::main_stack_test

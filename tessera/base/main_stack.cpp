#include "tessera/base/main_stack.h"

#include <execinfo.h>
#include <fmt/format.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <mutex>

#include "tessera/base/function_names.h"

namespace tessera {
namespace {

constexpr int kMostFrames = 512;
constexpr int kOwnFrames = 2;             // the handler's, and the kernel's way back from it
constexpr int kInnermost = 20;            // frames of a deep stack that are told …
constexpr int kOutermost = 16;            // … and at its other end
constexpr size_t kMostScript = 16 << 10;  // bytes

// What the handler writes to; one request at a time.
struct Capture {
  Capture() { sem_init(&done, 0, 0); }
  std::array<void*, kMostFrames> addresses{};
  int count = 0;
  sem_t done{};
};

Capture& capture() {
  static Capture& instance = *new Capture;
  return instance;
}

std::atomic<int> script_file = -1;

void take(int /*signal*/) {
  const int error_before = errno;
  Capture& own = capture();
  own.count = backtrace(own.addresses.data(), kMostFrames);
  sem_post(&own.done);
  errno = error_before;
}

int install() {
  std::array<void*, 1> some;
  capture();
  backtrace(some.data(), 1);  // loads what it needs, which a handler must not
  for (int signal = SIGRTMAX - 1; signal > SIGRTMIN; --signal) {
    struct sigaction former {};
    if (sigaction(signal, nullptr, &former) != 0 || former.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = take;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    if (sigaction(signal, &action, nullptr) == 0) return signal;
  }
  return 0;
}

bool answered(std::chrono::milliseconds at_most) {
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  const int64_t nanoseconds = until.tv_nsec + at_most.count() % 1000 * 1'000'000;
  until.tv_sec += at_most.count() / 1000 + nanoseconds / 1'000'000'000;
  until.tv_nsec = nanoseconds % 1'000'000'000;
  int result = 0;
  while ((result = sem_clockwait(&capture().done, CLOCK_MONOTONIC, &until)) != 0 && errno == EINTR) {
  }
  return result == 0;
}

std::string take_script() {
  const int file = script_file;
  if (file < 0) return "";
  std::string text(kMostScript, '\0');
  const ssize_t count = pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (ftruncate(file, 0) != 0 || lseek(file, 0, SEEK_SET) != 0) script_file = -1;
  return text;
}

}  // namespace

int main_stack_signal() {
  static const int signal = install();
  return signal;
}

void set_script_stack_file(int file) { script_file = file; }

MainStack main_stack(std::chrono::milliseconds at_most) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const int signal = main_stack_signal();
  if (signal == 0) return {};
  while (sem_trywait(&capture().done) == 0) {  // an answer that came too late
  }
  const pid_t process = getpid();
  if (syscall(SYS_tgkill, process, process, signal) != 0 || !answered(at_most)) return {};
  MainStack stack;
  const int count = capture().count;
  for (int i = std::min(kOwnFrames, count); i < count; ++i) {
    if (i == kOwnFrames + kInnermost && count - i > kOutermost + 1) {
      stack.frames.push_back(fmt::format("… {} more", count - i - kOutermost));
      i = count - kOutermost;
    }
    // A return address may be the first of what follows; the call is before it. Not so where the signal came.
    const auto* const address = static_cast<const char*>(capture().addresses[static_cast<size_t>(i)]);
    stack.frames.push_back(function_name(i == kOwnFrames ? address : address - 1));
  }
  stack.script = take_script();
  return stack;
}

}  // namespace tessera

#include "tessera/base/input_lines.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::string without_return(std::string line) {
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

}  // namespace

std::optional<std::string> InputLines::next(std::chrono::milliseconds at_most) {
  const auto until = std::chrono::steady_clock::now() + at_most;
  for (;;) {
    if (const size_t end = received_.find('\n'); end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return without_return(std::move(line));
    }
    if (has_ended_) {
      if (received_.empty()) return std::nullopt;
      return without_return(std::exchange(received_, {}));
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (!receive(std::max(left, std::chrono::milliseconds(0)))) return std::nullopt;
  }
}

// False: nothing came.
bool InputLines::receive(std::chrono::milliseconds at_most) {
  pollfd ready{.fd = descriptor_, .events = POLLIN, .revents = 0};
  const int found = poll(&ready, 1, static_cast<int>(at_most.count()));
  if (found == 0 || (found < 0 && errno == EINTR)) return false;
  std::array<char, 4096> some;
  const ssize_t count = found < 0 ? -1 : read(descriptor_, some.data(), some.size());
  if (count < 0 && errno == EINTR) return false;
  if (count < 0) throw Error(ErrorKind::kMachine, {errno_text(errno), "the input", ""});
  if (count == 0) has_ended_ = true;
  received_.append(some.data(), static_cast<size_t>(count));
  return true;
}

}  // namespace tessera

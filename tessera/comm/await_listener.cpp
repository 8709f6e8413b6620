#include "tessera/comm/await_listener.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <thread>

#include "tessera/base/unique_fd.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLongestPause{50};

// What a host answers to a connection: 0, or an errno.
int error_of_connecting(const addrinfo& address, milliseconds at_most) {
  const UniqueFd tried(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (tried.get() < 0) return errno;
  if (connect(tried.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd waited{tried.get(), POLLOUT, 0};
  if (poll(&waited, 1, static_cast<int>(at_most.count())) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(tried.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

}  // namespace

void await_listener(const std::string& host, int port, milliseconds at_most) {
  const auto end = steady_clock::now() + at_most;
  const auto left = [&] { return std::chrono::duration_cast<milliseconds>(end - steady_clock::now()); };
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  for (milliseconds pause{1}; left() > pause; pause = std::min(2 * pause, kLongestPause)) {
    bool refused = false;
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      const int error = error_of_connecting(*address, std::max(left(), milliseconds(1)));
      if (error == 0) return;
      refused |= error == ECONNREFUSED;
    }
    if (!refused) return;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace tessera::comm

#include "tessera/comm/store/tcp_connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr size_t kReadAtOnce = 64 << 10;      // bytes
constexpr std::chrono::seconds kAttempt{10};  // the kernel would try for two minutes, and nobody would know

bool await(int socket, short event, Deadline deadline) {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd polled{socket, event, 0};
    const int ready = poll(&polled, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

// 0, or an errno.
int connect_to(const UniqueFd& socket, const addrinfo& address, Deadline deadline) {
  if (!socket.open()) return errno;
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!await(socket.get(), POLLOUT, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

Obstacle obstacle_of(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
      return Obstacle::kRefused;
    case ETIMEDOUT:
      return Obstacle::kSilence;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EACCES:
    case EPERM:
      return Obstacle::kNoRoute;
    default:
      return Obstacle::kOther;
  }
}

}  // namespace

Connected connect_tcp(const std::string& host, int port, Deadline deadline) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int unknown = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (unknown != 0) {
    return {.socket = {},
            .obstacle = Obstacle::kUnknownName,
            .reason = gai_strerror(unknown),
            .may_come = unknown == EAI_AGAIN};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  Connected result;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    UniqueFd socket(::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const Deadline attempt = std::min(deadline, std::chrono::steady_clock::now() + kAttempt);
    const int error = connect_to(socket, *address, attempt);
    if (error == 0) {
      const int on = 1;
      setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return {.socket = std::move(socket)};
    }
    result.reason = errno_text(error);
    result.obstacle = obstacle_of(error);
    result.may_come |= result.obstacle != Obstacle::kOther;
  }
  return result;
}

Step send_all(int socket, std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!await(socket, POLLOUT, deadline)) return Step::kLate;
    } else if (errno != EINTR) {
      return Step::kClosed;
    }
  }
  return Step::kDone;
}

Step receive_some(int socket, std::string& input, Deadline deadline) {
  char bytes[kReadAtOnce];
  while (true) {
    const ssize_t count = recv(socket, bytes, sizeof(bytes), 0);
    if (count > 0) {
      input.append(bytes, static_cast<size_t>(count));
      return Step::kDone;
    }
    if (count == 0 || (errno != EAGAIN && errno != EINTR)) return Step::kClosed;
    if (!await(socket, POLLIN, deadline)) return Step::kLate;
  }
}

}  // namespace tessera::comm

#include "tessera/comm/store_listener.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

bool is_loopback_address(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  }
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

}  // namespace

std::optional<UniqueFd> listen_for_ranks(const std::string& host, int port, bool all_here) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (!all_here && is_loopback_address(each->ai_addr)) continue;
    UniqueFd socket(::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    if (!socket.open()) continue;
    setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    const bool listens =
        bind(socket.get(), each->ai_addr, each->ai_addrlen) == 0 && listen(socket.get(), SOMAXCONN) == 0;
    if (listens) return socket;
    if (errno == EADDRINUSE) {
      throw Error(ErrorKind::kMachine,
                  {fmt::format("port {} is already in use", port), fmt::format("{}:{}", host, port),
                   "choose another MASTER_PORT (tessera launch picks a free one by itself)"});
    }
  }
  return std::nullopt;
}

}  // namespace tessera::comm

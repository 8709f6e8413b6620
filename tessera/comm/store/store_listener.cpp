#include "tessera/comm/store/store_listener.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <optional>

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

// Closed where this host does not have the address. ErrorKind::kMachine: its port is taken.
UniqueFd listen_at(const sockaddr* address, socklen_t length, int port, const std::string& place) {
  UniqueFd socket(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.open()) return socket;
  const int on = 1;
  const int off = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address->sa_family == AF_INET6) setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(socket.get(), address, length) == 0 && listen(socket.get(), SOMAXCONN) == 0) return socket;
  if (errno == EADDRINUSE) {
    throw Error(ErrorKind::kMachine, {fmt::format("port {} is already in use", port), place,
                                      "choose another MASTER_PORT (tessera launch picks a free one by itself)"});
  }
  return {};
}

UniqueFd listen_everywhere(int port, const std::string& place) {
  sockaddr_in6 any6 = {};
  any6.sin6_family = AF_INET6;
  any6.sin6_port = htons(static_cast<uint16_t>(port));
  UniqueFd socket = listen_at(reinterpret_cast<const sockaddr*>(&any6), sizeof(any6), port, place);
  if (socket.open()) return socket;
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_port = any6.sin6_port;
  socket = listen_at(reinterpret_cast<const sockaddr*>(&any), sizeof(any), port, place);
  if (socket.open()) return socket;
  throw Error(ErrorKind::kMachine, {"the run's store cannot listen: " + errno_text(errno), place, ""});
}

int port_of(const UniqueFd& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  const bool v4 = address.ss_family == AF_INET;
  return ntohs(v4 ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                  : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

std::string numeric(const addrinfo& address) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address.ai_addr, address.ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

}  // namespace

StoreListener listen_for_ranks(const std::string& host, int port, bool all_here) {
  using Reach = StoreListener::Reach;
  const std::string place = fmt::format("{}:{}", host, port);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const bool loopback = is_loopback_address(each->ai_addr);
    if (loopback && !all_here) continue;
    UniqueFd socket = listen_at(each->ai_addr, each->ai_addrlen, port, place);
    if (!socket.open()) continue;
    const int own_port = port_of(socket);
    return {std::move(socket), own_port, numeric(*each), loopback ? Reach::kLoopback : Reach::kOneAddress};
  }
  UniqueFd socket = listen_everywhere(port, place);
  const int own_port = port_of(socket);
  return {std::move(socket), own_port, "127.0.0.1", Reach::kEveryAddress};
}

}  // namespace tessera::comm

#include "tessera/comm/own_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>

#include "tessera/base/unique_fd.h"

namespace tessera::comm {
namespace {

std::string numeric(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const int error = getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "";
}

}  // namespace

std::optional<Route> route_to(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;  // connecting one only looks the route up
  addrinfo* found = nullptr;
  constexpr const char* kAnyPort = "9";
  if (getaddrinfo(host.c_str(), kAnyPort, &hints, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const UniqueFd tried(socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own = {};
    socklen_t length = sizeof(own);
    auto* const address = reinterpret_cast<sockaddr*>(&own);
    if (!tried.open() || connect(tried.get(), each->ai_addr, each->ai_addrlen) != 0) continue;
    if (getsockname(tried.get(), address, &length) != 0) continue;
    return Route{numeric(address, length), numeric(each->ai_addr, each->ai_addrlen)};
  }
  return std::nullopt;
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

std::optional<std::string> own_address(const Route& own, const std::vector<Route>& all) {
  if (!is_loopback(own.own)) return own.own;
  const auto elsewhere =
      std::find_if(all.begin(), all.end(), [](const Route& route) { return !is_loopback(route.far); });
  if (elsewhere == all.end()) return std::nullopt;
  return elsewhere->far;
}

}  // namespace tessera::comm

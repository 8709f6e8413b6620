#include "tessera/launch/free_port.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <random>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/unique_fd.h"

namespace tessera::launch {
namespace {

// Ports to choose from; the kernel's own range usually begins at 32768.
constexpr int kFirstPort = 20000;
constexpr int kLastPort = 32767;
constexpr int kAttempts = 200;

// 0 when a server could listen on `port` of every address now, as a rendezvous store does; else the errno.
int listen_error(int port) {
  UniqueFd socket6(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int off = 0;
  if (socket6.open() && setsockopt(socket6.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0) {
    setsockopt(socket6.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<uint16_t>(port));
    if (bind(socket6.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) == 0) {
      return listen(socket6.get(), 1) == 0 ? 0 : errno;
    }
    if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) return errno;
  }
  UniqueFd socket4(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket4.open()) return errno;
  setsockopt(socket4.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  if (bind(socket4.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) != 0) return errno;
  return listen(socket4.get(), 1) == 0 ? 0 : errno;
}

// The claim on a port: a name in the kernel's own list, which is of one network namespace as ports are, and which the
// kernel forgets with the process. Not open where another launcher has it.
UniqueFd claim_of(int port) {
  const std::string name = fmt::format("tessera-port-{}", port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(name, address.sun_path + 1);  // behind a zero: no file
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  UniqueFd claim(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (claim.open() && bind(claim.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) claim.reset();
  return claim;
}

}  // namespace

FreePort pick_free_port() {
  int kernel_first = 32768;
  int kernel_last = 60999;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> kernel_first >> kernel_last;
  std::random_device random;
  int error = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const int port = std::uniform_int_distribution<int>(kFirstPort, kLastPort)(random);
    // A machine may have widened the kernel's range over all of ours; then half of the attempts take what there is.
    if (port >= kernel_first && port <= kernel_last && attempt < kAttempts / 2) continue;
    UniqueFd claim = claim_of(port);
    error = claim.open() ? listen_error(port) : EADDRINUSE;
    if (error == 0) return {.number = port, .claim = std::move(claim)};
  }
  throw Error(ErrorKind::kMachine,
              {fmt::format("no free port from {} to {}: {}", kFirstPort, kLastPort, errno_text(error)), "this host",
               "choose one with --master-port"});
}

void require_free_port(int port) {
  if (port < 1 || port > 65535) {
    throw Error(ErrorKind::kUsage, {fmt::format("--master-port is {}", port), "",
                                    "use a port from 1 to 65535, or leave it out to have a free one picked"});
  }
  if (const int error = listen_error(port)) {
    throw Error(ErrorKind::kMachine, {fmt::format("port {} cannot be used: {}", port, errno_text(error)),
                                      "--master-port", "leave it out to have a free port picked"});
  }
}

}  // namespace tessera::launch

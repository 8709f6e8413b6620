#include "tessera/launch/this_host.h"

#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "tessera/base/env.h"
#include "tessera/base/unique_fd.h"

namespace tessera::launch {

bool is_this_host(const std::string& name) {
  const std::string own = host_name();
  if (name == "localhost" || name == own || name == own.substr(0, own.find('.'))) return true;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(name.c_str(), "0", &wanted, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const UniqueFd probe(socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (probe.open() && bind(probe.get(), each->ai_addr, each->ai_addrlen) == 0) return true;
  }
  return false;
}

}  // namespace tessera::launch

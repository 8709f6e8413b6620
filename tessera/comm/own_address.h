// Which of this host's addresses other hosts reach.
//
// The name of a host may resolve to its own loopback on itself (Debian's /etc/hosts: 127.0.1.1), so each rank tells
// over which address of its own it would reach rank 0's host, and what address it takes that host to have. Where that
// is the loopback, the rank is on that host, and takes the address that the first rank of another host found.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera::comm {

// Numeric addresses.
struct Route {
  std::string own;
  std::string far;
};

// Sends nothing. Empty when the name cannot be resolved, or no interface leads there.
std::optional<Route> route_to(const std::string& host);

bool is_loopback(const std::string& address);

// Of a rank whose own route is `own`; `all`: every rank's. Empty when every rank is on rank 0's host.
std::optional<std::string> own_address(const Route& own, const std::vector<Route>& all);

}  // namespace tessera::comm

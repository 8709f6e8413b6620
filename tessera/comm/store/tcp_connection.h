// TCP with a deadline for each step.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "tessera/base/unique_fd.h"

namespace tessera::comm {

using Deadline = std::chrono::steady_clock::time_point;

// Why there is no connection.
enum class Obstacle {
  kUnknownName,  // the host's name has no address
  kRefused,      // the host says that nobody listens at this port
  kSilence,      // nothing comes back at all: who sends it is not let through, or the host is down
  kNoRoute,      // a router, a firewall or this host says that there is no way there
  kOther,
};

// A non-blocking socket connected to the first address of `host` that takes it; where none does, why the last did not.
// Each has ten seconds to answer.
struct Connected {
  UniqueFd socket;
  Obstacle obstacle = Obstacle::kOther;
  std::string reason = {};
  bool may_come = false;  // another attempt may succeed
};
Connected connect_tcp(const std::string& host, int port, Deadline deadline);

// How a step of a connection ended.
enum class Step { kDone, kLate, kClosed };

Step send_all(int socket, std::string_view bytes, Deadline deadline);

// What has come, at least a byte, behind `input`.
Step receive_some(int socket, std::string& input, Deadline deadline);

}  // namespace tessera::comm

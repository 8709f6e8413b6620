// TCP with a deadline for each step.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "tessera/base/unique_fd.h"

namespace tessera::comm {

using Deadline = std::chrono::steady_clock::time_point;

// A non-blocking socket connected to the first address of `host` that takes it; `reason`, where none does.
struct Connected {
  UniqueFd socket;
  std::string reason = {};
  bool may_come = false;  // nobody listens there yet
};
Connected connect_tcp(const std::string& host, int port, Deadline deadline);

// How a step of a connection ended.
enum class Step { kDone, kLate, kClosed };

Step send_all(int socket, std::string_view bytes, Deadline deadline);

// What has come, at least a byte, behind `input`.
Step receive_some(int socket, std::string& input, Deadline deadline);

}  // namespace tessera::comm

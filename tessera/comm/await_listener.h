#pragma once

#include <chrono>
#include <string>

namespace tessera::comm {

// Returns as soon as somebody listens on a TCP port of a host, or after `at_most`; also when anything but a refusal
// comes back, which the caller's own connection will then run into and report.
//
// c10d's store retries too, but waits a third of a second to a second between two attempts, so a rank that is a
// millisecond ahead of rank 0 would lose that much.
void await_listener(const std::string& host, int port, std::chrono::milliseconds at_most);

}  // namespace tessera::comm

#pragma once

#include <chrono>
#include <string>

namespace tessera::comm {

// Returns as soon as somebody listens on a TCP port of a host, or after `at_most`; also when anything but a refusal
// comes back, which a connection of the caller's own will then meet and report.
//
// c10d's store connects on its own as well, but waits a third of a second to a second between two tries, so a rank that
// is a millisecond ahead of rank 0 would lose as much.
void await_listener(const std::string& host, int port, std::chrono::milliseconds at_most);

}  // namespace tessera::comm

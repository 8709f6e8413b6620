// TCP ports of this host.
#pragma once

namespace tessera::launch {

// A port on which nobody listens, outside the range that the kernel gives to outgoing connections, so that no
// connection takes it before the ranks do. Nothing keeps it: another program that chooses ports itself may take it, at
// odds of about one to ten thousand. ErrorKind::kMachine when there is none.
int pick_free_port();

// ErrorKind::kUsage when `port` is not a port, ErrorKind::kMachine when it cannot be listened on now.
void require_free_port(int port);

}  // namespace tessera::launch

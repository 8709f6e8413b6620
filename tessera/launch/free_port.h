// TCP ports of this host.
#pragma once

#include "tessera/base/unique_fd.h"

namespace tessera::launch {

struct FreePort {
  int number = 0;
  UniqueFd claim;
};

// A port on which nobody listens, outside the range that the kernel gives to outgoing connections, so that no
// connection takes it before the ranks do. No launcher of this host picks it again while the claim is open; a program
// that is none of ours may still listen on it first. ErrorKind::kMachine when there is none.
FreePort pick_free_port();

// ErrorKind::kUsage when `port` is not a port, ErrorKind::kMachine when it cannot be listened on now.
void require_free_port(int port);

}  // namespace tessera::launch

// Where rank 0 serves the run's store. LibTorch alone would listen on every address of the host, for whoever reaches
// one of them.
#pragma once

#include <optional>
#include <string>

#include "tessera/base/unique_fd.h"

namespace tessera::comm {

// A listening socket at the first address of `host`, MASTER_ADDR, that this host has; port 0: any that is free.
// Nothing where there is none: the name is that of a service before this host, or stands for the loopback here and for
// this host elsewhere (Debian's 127.0.1.1), where `all_here` is false. ErrorKind::kMachine where the port is taken.
std::optional<UniqueFd> listen_for_ranks(const std::string& host, int port, bool all_here);

}  // namespace tessera::comm

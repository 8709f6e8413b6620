// Where rank 0 serves the run's store.
#pragma once

#include <string>

#include "tessera/base/unique_fd.h"

namespace tessera::comm {

struct StoreListener {
  enum class Reach { kLoopback, kOneAddress, kEveryAddress };
  UniqueFd socket;
  int port = 0;
  std::string own_host;  // over which this process reaches it, numeric
  Reach reach = Reach::kLoopback;
};

// Listens at the first address of `host`, MASTER_ADDR, that this host has; port 0: any that is free. Where there is
// none, at every address: the name is that of a service before this host, or stands for the loopback here and for this
// host elsewhere (Debian's 127.0.1.1), where `all_here` is false. ErrorKind::kMachine: the port is taken.
StoreListener listen_for_ranks(const std::string& host, int port, bool all_here);

}  // namespace tessera::comm

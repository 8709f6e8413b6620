// The key-value store through which the ranks of a run find each other, as rank 0 serves it.
//
// Torch's own store answers whoever connects. This one hears out those that have shown the run's secret (handshake.h):
// garbage, connections that stay silent and floods of them cost it a log line. A stranger has 10 s and one of a limited
// number of places, from which the next one pushes the longest waiting; a rank that is pushed out tries again.
#pragma once

#include <memory>
#include <string>

#include "tessera/base/unique_fd.h"

namespace tessera::comm {

class StoreServer {
 public:
  // Serves on a thread of its own until destroyed. `listener`: a listening TCP socket. `place`: its address, for log
  // lines. `ranks`: how many will connect, about.
  StoreServer(UniqueFd listener, std::string place, const std::string& secret, int ranks);
  ~StoreServer();

 private:
  class Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tessera::comm

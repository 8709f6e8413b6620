// How the ranks of a host hand each other the file descriptors of their segments, and notice that one is gone.
//
// Every rank listens on a Unix socket with an abstract name (no file; seen only within the network namespace), tells
// the name through the store, and sends its descriptor to everybody. The connections stay open: the kernel closes them
// when a process ends, in whatever way.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/deadline.h"
#include "tessera/base/unique_fd.h"

namespace tessera::comm::shm {

class PeerLinks {
 public:
  // The socket on which this rank listens; its name is for the others.
  explicit PeerLinks(int rank);
  const std::string& name() const { return name_; }

  // Sends `file` to the others, whose names are names[rank], and returns theirs (at this rank's own place, none).
  // Collective. ErrorKind::kPeer names a rank that did not answer in time, ErrorKind::kMachine says what the kernel
  // refused.
  std::vector<UniqueFd> exchange_files(const std::vector<std::string>& names, int file, const Deadline& deadline);

  // The process of that rank has ended; or it closed its links some time ago, or cannot be watched (so that a rank
  // which fails has ended, with its own exit code, before others fail because of it). One thread at a time.
  bool is_gone(int rank);

 private:
  struct Link {
    std::optional<std::chrono::steady_clock::time_point> closed;  // when that was first seen
    UniqueFd socket;                                              // to the peer
    UniqueFd accepted;                                            // from the peer: it watches this end
    UniqueFd process;  // a pidfd: a fork of the peer may hold its end of the socket open. Absent where not supported.
  };

  void connect_to(int peer, const std::string& name, int file);

  int rank_;
  std::string name_;
  UniqueFd listener_;
  std::vector<Link> links_;
};

// Ranks with the same text can share memory: one kernel, one network namespace, one user.
std::string host_identity();

}  // namespace tessera::comm::shm

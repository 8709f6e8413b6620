// A small process that outlives the launcher by a moment: when the launcher is gone, for whatever reason, it kills the
// process groups of the ranks that were running. The kernel kills only the ranks themselves then (PR_SET_PDEATHSIG),
// not what they have started.
//
// Out of its reach: a process that a rank moved to another group or session, and the groups when the guard itself was
// killed first.
#pragma once

#include <sys/types.h>

#include "tessera/base/unique_fd.h"

namespace tessera::launch {

class OrphanGuard {
 public:
  // For ranks 0 to nproc - 1. ErrorKind::kMachine when no process or pipe is available.
  explicit OrphanGuard(int nproc);
  ~OrphanGuard();  // kills the groups still watched, and waits until the guard has ended
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;

  pid_t pid() const { return pid_; }

  // Also between fork and exec. A group is to be watched by the process itself before its program runs: told by the
  // launcher afterwards, what the program starts at once would be left behind by a launcher that is killed in between.
  void watch(int rank, pid_t group) { tell(rank, group); }
  void forget(int rank) { tell(rank, 0); }

 private:
  void tell(int rank, pid_t group);

  pid_t pid_ = -1;
  UniqueFd line_;  // its end in the guard reads end-of-file once no launcher is left
};

}  // namespace tessera::launch

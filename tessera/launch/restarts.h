// A launch that is started again when a rank fails.
//
//   const int code = run_with_restarts(launch, {.at_most = 3, .prepare = [](Launch& next) { … --resume … }});
//
// Each life is a run of its own (runners.h), on a free port where none was asked for, whose ranks find in
// TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_MAX_RESTARTS, as under torchrun, which it is. There is no other life
// after exit code 2, which says that somebody has to put something right first, nor after kRequeueCode
// (base/signals.h), nor after a signal to the launcher.
//
// A host that was lost (silent, or its connection ended) is given up where fewer ranks may run, and the hosts left go
// on. What still runs there ends by itself (ssh_runner.h); the next life starts once it must have.
#pragma once

#include <functional>
#include <vector>

#include "tessera/launch/runners.h"

namespace tessera::launch {

struct Restarts {
  int at_most = 0;

  // A rank that SIGKILL ended, as where memory ran out, and all of a host that was lost, are given up while so many are
  // left; 0: none is.
  int fewest_ranks = 0;

  std::function<bool(int ranks)> can_run = {};     // whether so many can run it; empty: any number can
  std::function<void(Launch& next)> prepare = {};  // changes what is started again, on the hosts and slots it names
};

// The hosts of a life on fewer ranks: slots are given up on `hosts[failed]` first, then on the last hosts.
std::vector<HostSlots> hosts_left(std::vector<HostSlots> hosts, size_t failed, int ranks);

// ErrorKind::kUsage where it cannot be started again so.
void check_restarts(const Restarts& restarts, const Launch& launch);

// Returns the exit code to use, that of the last life. Checked before.
int run_with_restarts(const Launch& first, const Restarts& restarts);

}  // namespace tessera::launch

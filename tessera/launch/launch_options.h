// What to start as ranks, and what becomes of their output and of those that outlive a failure: all that a runner is
// told (runners.h).
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::launch {

struct LaunchOptions;

// Whether a run in which a rank has failed is started again. Not after exit code 2, which says that somebody has to
// put something right first, nor after a signal to the launcher.
struct Restarts {
  int at_most = 0;
  int fewest_ranks =
      0;  // a rank that SIGKILL ended, as where memory ran out, is given up while so many are left; 0: none

  // Whether so many ranks can run it; empty: any number can.
  std::function<bool(int nproc)> can_run = {};

  // Changes what is started again, whose nproc says on how many ranks: the command, the environment.
  std::function<void(LaunchOptions& next)> prepare = {};
};

struct LaunchOptions {
  enum class Output {
    kPrefixAll,      // every line of every rank begins with "[rank N] "
    kRankZeroPlain,  // rank 0 writes as if it ran alone: to our terminal itself, to a pipe or file byte by byte
  };

  int nproc = 1;
  std::vector<std::string> command = {};  // argv; command[0] is looked up in PATH, …
  std::string program = {};               // … unless this names the file to execute
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0: a free port is picked
  Output output = Output::kPrefixAll;
  std::chrono::milliseconds grace{4000};                      // between SIGTERM and SIGKILL when a rank has failed
  std::chrono::milliseconds ending_time{60000};               // after a forwarded signal, before SIGKILL
  std::map<std::string, std::string> extra_environment = {};  // set for every rank, over what is inherited
  Restarts restarts = {};
};

}  // namespace tessera::launch

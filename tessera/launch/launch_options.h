// What to start as ranks on this host, and what becomes of their output and of those that outlive a failure: all that
// run_local is told (local_runner.h).
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace tessera::launch {

enum class RankOutput {
  kPrefixAll,      // every line of every rank begins with "[rank N] "
  kRankZeroPlain,  // rank 0 writes as if it ran alone: to our terminal itself, to a pipe or file byte by byte
  kInherited,      // ranks write to our output themselves
};

struct LaunchOptions {
  using Output = RankOutput;

  int nproc = 1;
  std::vector<std::string> command = {};  // argv; command[0] is looked up in PATH, …
  std::string program = {};               // … unless this names the file to execute
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0: a free port is picked
  Output output = Output::kPrefixAll;
  std::chrono::milliseconds grace{4000};                      // between SIGTERM and SIGKILL when a rank has failed
  std::chrono::milliseconds ending_time{60000};               // after a forwarded signal, before SIGKILL
  std::map<std::string, std::string> extra_environment = {};  // set for every rank, over what is inherited
};

}  // namespace tessera::launch

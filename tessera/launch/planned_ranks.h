// Starts ranks that somebody has planned on this host, and returns once all have ended. local_runner.h says what it
// promises of signals, failures, output and what is left behind; here a plan gives each rank its command, its
// environment and where its output goes.
//
//   const int code = run_planned({{.rank = 4, .command = {"./train"}, .environment = {{"RANK", "4"}}}}, {}).code;
//
// Of one thread, and one call at a time in a process.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tessera/launch/process_plan.h"
#include "tessera/launch/rank_exit.h"

namespace tessera::launch {

struct Supervision {
  std::chrono::milliseconds grace{4000};         // between SIGTERM and SIGKILL when a rank has failed
  std::chrono::milliseconds ending_time{60000};  // after a forwarded signal, before SIGKILL
  bool signal_fails = false;  // after a signal to the launcher: 128 + signal, also where all ranks ended with 0
  bool obeys_input = false;   // standard input is a line from a launcher on another host (node_part.h)
};

struct RunOutcome {
  int code = 0;                          // to leave with
  bool told_to_end = false;              // by a signal to the launcher, or nobody reads its output any more
  std::optional<RankExit> failure = {};  // of the rank to blame
};

// `program`: the file to execute in place of each command's first word, which is looked up in PATH where it is empty.
// Nothing has started yet when it throws ErrorKind::kUsage for a program that there is not.
RunOutcome run_planned(const std::vector<RankPlan>& plans, const Supervision& supervision,
                       const std::string& program = "");

}  // namespace tessera::launch

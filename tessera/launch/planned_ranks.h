// Starts ranks that somebody has planned on this host, and returns once all have ended. A plan gives each its command,
// its environment and where its output goes.
//
//   const int code = run_planned({{.rank = 4, .command = {"./train"}, .environment = {{"RANK", "4"}}}}, {}).code;
//
// Lines stay whole, whoever writes them. A rank whose plan does not hand on standard input reads nothing.
//
// When a rank fails (it exits with other than 0, or a signal kills it) the others get SIGTERM, and after `grace`
// SIGKILL; then standard error tells which rank failed first, what its exit means, and its last lines. A rank that
// exits with 0 stops nobody. SIGINT, SIGTERM or SIGHUP to the launcher is forwarded once to all ranks, which then have
// `ending_time` to save and end; a second SIGINT kills them at once. So is SIGUSR1, by which a scheduler asks for a
// checkpoint (base/signals.h): they have `requeue_time`.
//
// The code is 0 when all ranks ended with 0, also after a signal; kRequeueCode when SIGUSR1 to the launcher ended them
// so; 128 + signal after another signal to the launcher; 141 when
// nobody reads our output any more; else the first failing rank's code, 128 + signal if one killed it. Nothing has
// started yet when it throws ErrorKind::kUsage for a program that there is not; when the machine refuses a process half
// way through, those started are killed before the throw.
//
// No process is left behind. Every rank leads a session and process group of its own; what it leaves running there is
// killed when it ends, what it moved to another group when all have ended. When the launcher itself is killed, by
// SIGKILL too, the kernel kills the ranks and a guard process (orphan_guard.h) their groups; only what a rank moved to
// a group of its own outlives that.
//
// A plan may stand for the ranks of another host (process_plan.h). Such a host tells at once which of its ranks failed,
// and every second that it lives (host_line.h): one that is silent is given up, named and not waited for.
//
// One call at a time in a process. While it runs, signals and child processes are its own: the caller starts no other
// children, and the calling thread must be the one that stays (the kernel ties the ranks' life to it).
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tessera/launch/process_plan.h"
#include "tessera/launch/rank_exit.h"

namespace tessera::launch {

struct Supervision {
  std::chrono::milliseconds grace{4000};           // between SIGTERM and SIGKILL when a rank has failed
  std::chrono::milliseconds ending_time{60000};    // after a forwarded signal, before SIGKILL
  std::chrono::milliseconds requeue_time{600000};  // the same after SIGUSR1: who sends it knows how long there is
  bool signal_fails = false;  // after a signal to the launcher: 128 + signal, also where all ranks ended with 0
  bool obeys_input = false;   // standard input is a line from a launcher on another host (node_part.h)
  std::chrono::milliseconds silence{0};  // allowed to the other end of such a line; 0: for ever
};

struct RunOutcome {
  int code = 0;                          // to leave with
  bool told_to_end = false;              // by a signal to the launcher, or nobody reads its output any more
  std::optional<RankExit> failure = {};  // of the rank to blame
  size_t failed_plan = 0;                // the index of its plan
  bool lost_host = false;                // that stands for a host, which is gone or silent
};

// `program`: the file to execute in place of each command's first word, which is looked up in PATH where it is empty.
RunOutcome run_planned(const std::vector<RankPlan>& plans, const Supervision& supervision,
                       const std::string& program = "");

}  // namespace tessera::launch

// Runs one program as N ranks on this host, and returns once all have ended.
//
//   const int code = run_local({.nproc = 4, .command = {"./train", "--steps", "10"}});
//
// Each rank finds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and their kin (environment.h) in its
// environment. Rank 0 inherits standard input, the others read nothing. Lines stay whole, whoever writes them.
//
// When a rank fails (it exits with other than 0, or a signal kills it) the others get SIGTERM, and after `grace`
// SIGKILL; then standard error tells which rank failed first, what its exit means, and its last lines. A rank that
// exits with 0 stops nobody. SIGINT, SIGTERM or SIGHUP to the launcher is forwarded once to all ranks, which then have
// `ending_time` to save and end; a second SIGINT kills them at once.
//
// Returns the exit code to use: 0 when all ranks ended with 0, also after a signal; 128 + signal after a signal
// to the launcher; 141 when nobody reads our output any more; else the first failing rank's code, 128 + signal if one
// killed it. Nothing has started yet when it throws ErrorKind::kUsage (no such program, nproc < 1) or
// ErrorKind::kMachine (master_port is taken); when the machine refuses a process half way through, those started are
// killed before the throw.
//
// No process is left behind. Every rank leads a session and process group of its own; what it leaves running there is
// killed when it ends, what it moved to another group when all have ended. When the launcher itself is killed, by
// SIGKILL too, the kernel kills the ranks and a guard process (orphan_guard.h) their groups; only what a rank moved to
// a group of its own outlives that.
//
// One call at a time in a process. While it runs, signals and child processes are its own: the caller starts no other
// children, and the calling thread must be the one that stays (the kernel ties the ranks' life to it).
#pragma once

#include "tessera/launch/launch_options.h"

namespace tessera::launch {

int run_local(const LaunchOptions& run);

}  // namespace tessera::launch

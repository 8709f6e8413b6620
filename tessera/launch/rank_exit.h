// How a rank ended, in words and as an exit code, and whose end is to blame when several ended at once. Arithmetic
// only.
#pragma once

#include <span>
#include <string>

namespace tessera::launch {

struct RankExit {
  int code = 0;    // meaningful when signal is 0
  int signal = 0;  // that killed it; 0: it ended by itself
  bool core_dumped = false;

  bool failed() const { return code != 0 || signal != 0; }
};

// From the status that waitpid gives.
RankExit rank_exit_of(int wait_status);

// The code to hand on: its own, or 128 + signal as a shell does.
int exit_code_of(const RankExit& exit);

// "SIGKILL".
std::string signal_name(int signal);

// To follow "rank 1 ": "was killed by SIGSEGV, an access to memory it does not own", "exited with code 3".
// `memory_ran_out`: the kernel has killed a process for lack of memory meanwhile, so that SIGKILL probably came of
// that.
std::string exit_words(const RankExit& exit, bool memory_ran_out = false);

// What to do about the signal that killed it, or a command it ran; empty where that is not known.
std::string fix_of_signal(const RankExit& exit);

// Whether SIGKILL ended it, or a command it ran, which a shell reports as code 137: so ends who takes the last memory,
// and whom a scheduler or a person kills.
bool was_killed_outright(const RankExit& exit);

// The index of the one to blame among exits seen at the same moment. A signal that only this process or the machine can
// cause (SIGSEGV, SIGKILL) goes before a plain code; a plain code and what an uncaught "connection closed by peer" ends
// in (SIGABRT, SIGPIPE) come last, since they may be consequences. The first of equals; -1 when none has failed.
int index_to_blame(std::span<const RankExit> exits);

}  // namespace tessera::launch

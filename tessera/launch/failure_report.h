// What standard error says about a rank that failed. Text only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tessera/launch/memory_use.h"
#include "tessera/launch/rank_exit.h"

namespace tessera::launch {

struct RankFailure {
  int rank = 0;
  std::string name = {};   // of what stands for another host's ranks, that host's; empty: "rank 1"
  bool elsewhere = false;  // such a one: its process is an ssh, and one of these says what became of the host
  int rank_there = -1;     // the rank that failed there, as that host told
  bool was_heard = false;  // its launcher had started
  std::chrono::seconds silent_for{0};  // it was given up because nothing came of it for so long
  bool all_are_silent = false;         // and of no other host either
  pid_t pid = 0;
  RankExit exit = {};
  std::chrono::duration<double> after_start{0};
  MemoryUse memory = {};               // as last seen while it ran
  uint64_t memory_limit_bytes = 0;     // of the machine or the control group
  uint64_t out_of_memory_kills = 0;    // by the kernel, on this machine, since the run began
  std::vector<int> ended_before = {};  // ranks that had ended with code 0 by then; ascending
  std::vector<std::string> command = {};
  std::deque<std::string> last_lines = {};
  bool output_not_seen = false;  // it wrote to the terminal itself
  std::string log_file = {};     // it wrote to this file
};

// "rank 1 was killed by SIGKILL, probably out of memory: resident 21.3 GB (peak 21.9 GB) of 23.0 GB, 14 s after
// start", where the kernel has killed somebody for that.
std::string failure_sentence(const RankFailure& failure);

// "rank 1 (SIGKILL)", "worker-0 (code 3)": for the line that comes at once.
std::string failure_name(const RankFailure& failure);

// Whether it is rather the cause: a rank that was killed goes before a host that is gone, that before a rank that ended
// by itself, and code 1 comes last, with which ranks end that lost another.
bool goes_before(const RankFailure& one, const RankFailure& other);

// A host that is gone: it is silent, or its connection ended.
bool is_lost_host(const RankFailure& failure);

// The whole report, several lines: the sentence, the process, its last lines, `others` (what became of the other ranks;
// may be empty) and what to do about it.
std::string failure_report(const RankFailure& failure, const std::string& others);

}  // namespace tessera::launch

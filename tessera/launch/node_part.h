// The ranks of one host of a run that a launcher on another host started, over a line: this process's standard input,
// the other end of which is ssh's. Over it come, each on a line of its own,
//
//   {"hosts": …, "node_rank": 1, …}     the whole plan, first: nothing of it is on a command line, where others read it
//   alive                               every second (host_line.h)
//   signal 2                            a signal that the launcher got, for all ranks
//   stop                                a rank of another host has failed
//
// and its end, or its silence, says that the launcher or the connection is gone: then the ranks are stopped as after
// "stop", so that none is left behind. Exit code and output are those of run_node; once the line has ended, 129
// (SIGHUP).
#pragma once

#include <chrono>
#include <string>

#include "tessera/launch/cluster_plan.h"

namespace tessera::launch {

inline constexpr const char* kStopWord = "stop\n";

std::string word_of_signal(int signal);

// 0 for another word; without its line's end.
int signal_of_word(const std::string& word);

struct NodePart {
  ClusterPlan cluster = {};
  int node_rank = 0;
  bool saves_pid = false;
  std::chrono::seconds silence{0};  // allowed to the line (Supervision::silence)
  std::string folder = {};          // where the ranks run
};

// One line, with its end. ErrorKind::kUsage for a word or a variable that is not UTF-8.
std::string node_part_line(const NodePart& part);

// ErrorKind::kUsage for a line that another version wrote.
NodePart parse_node_part(const std::string& line);

// Reads the line from standard input, and runs the ranks. ErrorKind::kUsage also where the folder is not here.
int run_node_part();

}  // namespace tessera::launch

// One process of a run, and what it is given. cluster_plan.h makes these of a run.
#pragma once

#include <string>
#include <vector>

#include "tessera/launch/environment.h"

namespace tessera::launch {

struct RankPlan {
  int rank = 0;
  std::vector<std::string> command = {};
  Environment environment = {};  // to set over what the launcher inherited
  bool inherits_input = false;   // standard input is the launcher's; else it is empty
  bool plain_output = false;     // written through as it comes; else line by line, each behind `prefix`
  std::string prefix = {};
  bool inherits_output = false;  // the rank has the launcher's own standard output and error
  std::string log_file = {};     // the rank writes both to this file instead, which is made anew

  // For a process that stands for the ranks of another host (ssh_runner.h).
  std::string name = {};         // in messages; empty: "rank <rank>"
  bool is_here = false;          // that host is this one
  std::string first_input = {};  // written to its standard input, which stays open for what node_part.h says
};

// Whether it is such a one.
bool stands_for_host(const RankPlan& plan);

// "rank 3", or the plan's own name.
std::string name_of(const RankPlan& plan);

}  // namespace tessera::launch

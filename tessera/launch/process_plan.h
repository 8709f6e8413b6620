// Which processes a run consists of, and what each is given. Arithmetic only: nothing is started or read from the
// machine, so every case can be tested.
#pragma once

#include <string>
#include <vector>

#include "tessera/launch/environment.h"
#include "tessera/launch/launch_options.h"

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
  std::string first_input = {};  // written to its standard input, which stays open for what node_part.h says
};

// "rank 3", or the plan's own name.
std::string name_of(const RankPlan& plan);

struct Host {
  int cores = 1;
  int master_port = 0;             // the port that was picked or asked for
  bool omp_threads_given = false;  // OMP_NUM_THREADS is set in the launcher's environment
  std::string secret = {};         // made for this run (base/run_secret.h); empty: the environment names one
};

// One plan a rank, in the order of the ranks. ErrorKind::kUsage when nproc is below 1 or there is no program. The run's
// extra_environment wins over what is inherited and over OMP_NUM_THREADS; a rank's own variables win over all.
std::vector<RankPlan> plan_local(const LaunchOptions& run, const Host& host);

}  // namespace tessera::launch

// Which program runs where, and how: everything that a command line or a configuration says of a launch. `deepspeed`,
// `tessera launch` and `tessera train` fill it in; host_filter.h, cluster_plan.h and remote_commands.h read it. The
// names are those of DeepSpeed's options, and so are the values that stand for "not given".
#pragma once

#include <string>

#include "tessera/launch/environment.h"
#include "tessera/launch/rank_program.h"

namespace tessera::launch {

enum class RankOutput {
  kPrefixAll,      // every line of every rank begins with "[rank N] "
  kRankZeroPlain,  // rank 0 writes as if it ran alone: to our terminal itself, to a pipe or file byte by byte
  kInherited,      // ranks write to our output themselves
};

struct LaunchRequest {
  RankProgram program = {};
  std::string program_file = {};  // to execute in place of the program's name; empty: PATH is searched for it

  // Which hosts and slots. A slot is a place for one rank: a device's index, or just a number on hosts without devices.
  std::string hostfile = {};     // empty: this host alone
  std::string include = {};      // "worker-0@worker-1:0,2" (host_filter.h)
  std::string exclude = {};      // the same; one of the two
  int num_nodes = -1;            // the first N hosts
  int num_gpus = -1;             // slots 0 to N-1 of each host
  std::string master_addr = {};  // of rank 0's host; empty: found
  int master_port = 0;           // 0: a free one (of one host), or 29500

  // How hosts are reached.
  std::string launcher = {};       // "local", "ssh" or a name of remote_launchers(); empty: as the hosts need it
  std::string launcher_args = {};  // for the launcher's program, quoted as for a shell
  bool no_ssh = false;             // this command runs on every host, …
  int node_rank = -1;              // … of which this is the index
  bool to_submit = false;          // to Slurm, as a job yet to be made: the one that this process is in does not matter
  bool force_multi = false;        // through the launcher even where one host is left
  int ssh_port = 0;                // 0: ssh's own
  std::string venv_script = {};    // sourced by the shell on each host first

  // What ranks get.
  bool bind_cores_to_rank = false;
  std::string bind_core_list = {};        // "0-3,8"; empty: all cores
  std::string enable_each_rank_log = {};  // folder for a file per rank; empty: ranks write to our output
  bool save_pid = false;                  // this process's ID in /tmp/<ID>.deepspeed while it runs
  Environment environment = {};           // set for every rank, over what is inherited or exported
  RankOutput output = RankOutput::kPrefixAll;
};

}  // namespace tessera::launch

// The command lines by which other programs start the ranks of a run on many hosts: pdsh, mpirun (Open MPI, MPICH,
// Intel MPI, MVAPICH), srun. Each is DeepSpeed 0.19.8's for the same options; that of srun without a hostfile, which
// DeepSpeed has not, is ours. Arithmetic on words: nothing is started here, and nothing is asked of the machine.
//
//   remote_launchers().find("slurm", "--launcher").make.command(run).arguments   {"srun", "-n", "8", …}
//
// pdsh starts a launcher on each host, which starts that host's ranks; the others start each rank themselves, so that a
// rank finds its place in their variables (comm/rendezvous.h).
#pragma once

#include <string>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/launch/exported_environment.h"
#include "tessera/launch/hostfile.h"
#include "tessera/launch/launch_request.h"

namespace tessera::launch {

struct RemoteRun {
  LaunchRequest request = {};                   // with master_addr and master_port
  std::vector<HostSlots> pool = {};             // what the hostfile names
  std::vector<HostSlots> hosts = {};            // what the filters left of it
  std::string world_info = {};                  // of `hosts`
  Exports exports = {};                         // as RemoteLauncher::quoted wrote the values
  std::string folder = {};                      // where ranks run
  std::string hostfile = {};                    // for mpirun; MVAPICH's has the names alone
  std::vector<std::string> node_launcher = {};  // what pdsh starts on each host, followed by launch.py's options
  std::vector<std::string> rank_starter = {};   // MPICH, srun: what gives a rank a launcher's variables; empty: nothing
  int launcher_pid = 0;                         // names the hosts' pid files (--save_pid)
  std::string pdsh_ssh_arguments = {};          // what PDSH_SSH_ARGS_APPEND says already
  bool hosts_are_slurms = false;                // no hostfile names them (slurm_job.h)
};

struct RemoteCommand {
  std::vector<std::string> arguments = {};
  Environment environment = {};       // for the command itself, over ours
  std::vector<std::string> end = {};  // ends the ranks elsewhere after a signal; empty: the command does
};

// What srun starts in place of a program, whose name and arguments follow, so that it finds a rank's variables
// (slurm_task.h).
std::vector<std::string> slurm_task_words(const RankProgram& program);

// DeepSpeed's quotes: double ones where the value has a character outside [\w@%+=:,./-].
std::string double_quoted(const std::string& value);

struct RemoteLauncher {
  const char* program = nullptr;  // its being installed tells that the launcher is
  bool filters_hosts = true;      // can leave hosts or slots out
  bool needs_equal_slots = false;
  std::string (*quoted)(const std::string& value) = double_quoted;  // of an exported variable, for its command line
  Exports (*own_exports)() = [] { return Exports(); };  // set for every rank, unless the environment says otherwise
  RemoteCommand (*command)(const RemoteRun& run) = nullptr;
};

Registry<RemoteLauncher> remote_launchers();

// ErrorKind::kUsage, naming the option, where the launcher cannot do what is asked of it, or where the hosts' slots are
// not what it can start ranks on.
void check_remote_options(const std::string& launcher, const LaunchRequest& request);
void check_remote_slots(const std::string& launcher, const RemoteRun& run);

// ErrorKind::kUsage, naming the program, where it is not installed on this host.
void require_launcher_installed(const std::string& launcher);

}  // namespace tessera::launch

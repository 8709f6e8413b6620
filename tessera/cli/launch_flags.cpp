#include "tessera/cli/launch_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "tessera/base/env.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

constexpr int kMostRanksOfHost = 4096;
constexpr const char* kWhichHosts[] = {"--hostfile", "--include", "--exclude", "--num_nodes", "--nproc"};

}  // namespace

bool LaunchFlags::runs_here(const CLI::App& command) const {
  const bool by_launcher = request.no_ssh || !request.launcher.empty();
  const bool asked = std::any_of(std::begin(kWhichHosts), std::end(kWhichHosts), [&](const char* name) {
    const CLI::Option* const option = command.get_option_no_throw(name);
    return option != nullptr && option->count() > 0;
  });
  if (!asked && !by_launcher) return true;
  const bool elsewhere =
      !request.hostfile.empty() || !request.include.empty() || !request.launcher.empty() || request.num_nodes > 1;
  return nproc == 1 && !elsewhere && !env_text("RANK");
}

void LaunchFlags::check_print_sbatch() const {
  if (restarts.at_most == 0) return;
  throw Error(ErrorKind::kUsage, {"--max-restarts does not go with --print-sbatch, whose ranks srun starts",
                                  "the command line", "leave it out: the script has the job queued again"});
}

launch::LaunchRequest LaunchFlags::made(const CLI::App& command) const {
  launch::LaunchRequest result = request;
  if (command.count("--nproc") > 0) {
    if (nproc < 1 || nproc > kMostRanksOfHost) {
      throw Error(ErrorKind::kUsage, {fmt::format("--nproc is {}", nproc), "the command line",
                                      fmt::format("use 1 to {} ranks of a host", kMostRanksOfHost)});
    }
    result.num_gpus = nproc;
  }
  if (result.enable_each_rank_log == "None") result.enable_each_rank_log.clear();
  return result;
}

void add_launch_flags(CLI::App& command, LaunchFlags& flags) {
  launch::LaunchRequest& request = flags.request;
  command.add_option("--nproc,--num_gpus,--num-gpus", flags.nproc,
                     "Number of ranks: of this host, or of each host of a hostfile (default: 1, or all slots)");
  command.add_option("-H,--hostfile", request.hostfile, "File of hosts, with lines such as 'worker-0 slots=4'");
  command.add_option("-i,--include", request.include, "Hosts and slots to use: host[:slot,slot...][@host...]");
  command.add_option("-e,--exclude", request.exclude, "Hosts and slots to leave out, in the same form");
  command.add_option("--num_nodes,--num-nodes", request.num_nodes, "Use the first N hosts of the hostfile");
  command.add_option("--master_addr,--master-addr", request.master_addr,
                     "Address where the ranks meet (default: that of the first host)");
  command
      .add_option("--master_port,--master-port", request.master_port,
                  "Port where the ranks meet (default: a free one; on several hosts 29500)")
      ->check(CLI::Range(1, 65535));
  command
      .add_option("--launcher", request.launcher,
                  fmt::format("How hosts are reached: {} (default: local or ssh, as the hosts need it)",
                              fmt::join(launch::launcher_names(), ", ")))
      ->type_name("NAME");
  command
      .add_option("--launcher_args,--launcher-args", request.launcher_args,
                  "Arguments for the launcher's program, as one word")
      ->type_name("ARGS");
  command.add_flag("--no_ssh,--no-ssh", request.no_ssh, "This command runs on every host; needs --node_rank");
  command.add_option("--node_rank,--node-rank", request.node_rank, "Index of this host, with --no_ssh");
  command.add_flag("--force_multi,--force-multi", request.force_multi, "Use the launcher even for this host alone");
  command.add_option("--ssh_port,--ssh-port", request.ssh_port, "ssh's port on the hosts")->check(CLI::Range(1, 65535));
  command.add_option("--venv_script,--venv-script", request.venv_script, "Script to source on each host first");
  command.add_flag("--bind_cores_to_rank,--bind-cores-to-rank", request.bind_cores_to_rank,
                   "Bind each rank to its own cores (numactl)");
  command.add_option("--bind_core_list,--bind-core-list", request.bind_core_list,
                     "Cores to divide among the ranks, like 0-3,8");
  command
      .add_option("--enable_each_rank_log,--enable-each-rank-log", request.enable_each_rank_log,
                  "Folder for one log file per rank")
      ->type_name("DIR");
  command.add_flag("--save_pid,--save-pid", request.save_pid,
                   "Write the launcher's process ID to /tmp/<its ID>.deepspeed");
  command
      .add_option("--max-restarts,--max_restarts", flags.restarts.at_most,
                  "Start again when a rank fails, so many times at most; not after exit code 2")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option("--min-nproc,--min_nproc", flags.restarts.fewest_ranks,
                  "Start again without a rank that was killed, as where memory ran out, or a host that was lost, but "
                  "with no fewer ranks than this (default: with as many as before)")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  command.add_flag("--print-sbatch,--print_sbatch", flags.print_sbatch,
                   "Print a job script for Slurm's sbatch that does this, and start nothing (docs/slurm.md)");
}

void add_program_flags(CLI::App& command, LaunchFlags& flags) {
  command.add_flag("--module", flags.form.module, "PROGRAM is a Python module: python3 -u -m");
  command.add_flag("--no_python,--no-python", flags.form.no_python, "Run PROGRAM itself, also where it ends in .py");
  command.add_flag("--no_local_rank,--no-local-rank", flags.form.no_local_rank,
                   "Do not pass --local_rank to a Python program");
}

}  // namespace tessera::cli

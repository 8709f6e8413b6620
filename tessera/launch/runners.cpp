#include "tessera/launch/runners.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/run_secret.h"
#include "tessera/base/shell.h"
#include "tessera/base/suggest.h"
#include "tessera/launch/cluster_plan.h"
#include "tessera/launch/core_binding.h"
#include "tessera/launch/exported_environment.h"
#include "tessera/launch/free_port.h"
#include "tessera/launch/host_filter.h"
#include "tessera/launch/node_run.h"
#include "tessera/launch/remote_commands.h"
#include "tessera/launch/remote_run.h"
#include "tessera/launch/slurm_job.h"
#include "tessera/launch/ssh_runner.h"
#include "tessera/launch/this_host.h"
#include "tessera/launch/world_info.h"

namespace tessera::launch {
namespace {

constexpr int kDefaultPort = 29500;  // torch.distributed's and DeepSpeed's
constexpr const char* kCommandLine = "the command line";
constexpr const char* kLocal = "local";
constexpr const char* kSsh = "ssh";

// No hostfile names them.
bool hosts_are_slurms(const LaunchRequest& request) {
  return request.launcher == kSlurmLauncher && request.hostfile.empty() && !request.no_ssh;
}

std::string own_program() { return std::filesystem::canonical("/proc/self/exe").string(); }

// Slots are only numbers where no hostfile counts them: those that are asked for are there.
int slots_of_this_host(const LaunchRequest& request) {
  if (!request.exclude.empty()) {
    throw Error(ErrorKind::kUsage, {"--exclude needs a hostfile, which says what there is", kCommandLine,
                                    "name a hostfile (-H), or use --include localhost:0,2"});
  }
  int count = std::max(request.num_gpus, 1);
  if (request.include.empty()) return count;
  for (const HostSlots& node : parse_filter(request.include)) {
    for (const int slot : node.slots) count = std::max(count, slot + 1);
  }
  return count;
}

std::vector<HostSlots> pool_of(const LaunchRequest& request) {
  if (!request.hostfile.empty()) return read_hostfile(request.hostfile);
  if (hosts_are_slurms(request)) return slurm_pool(request);
  check_without_hostfile(request);
  const std::vector<int> slots = first_slots(slots_of_this_host(request));
  if (request.num_nodes <= 1) return {{"localhost", slots}};
  // Each is told its number alone (--no_ssh), so that they need no names.
  std::vector<HostSlots> machines;
  for (int machine = 0; machine < request.num_nodes; ++machine) {
    machines.push_back({fmt::format("machine-{}", machine), slots});
  }
  return machines;
}

std::string launcher_of(const LaunchRequest& request, const std::vector<HostSlots>& hosts) {
  if (request.no_ssh) return kLocal;
  const bool here = hosts.size() == 1 && is_this_host(hosts.front().host) && !request.force_multi;
  if (request.launcher.empty()) return here ? kLocal : kSsh;
  const std::vector<std::string> names = launcher_names();
  if (std::find(names.begin(), names.end(), request.launcher) == names.end()) {
    throw_unknown_name({.kind = "launcher", .name = request.launcher, .where = "--launcher"}, names);
  }
  if (request.launcher == kLocal && !here) {
    throw Error(ErrorKind::kUsage, {fmt::format("--launcher local starts ranks on this host alone, not on {}",
                                                hosts.size() > 1 ? hosts[1].host : hosts[0].host),
                                    kCommandLine, "use --launcher ssh, or filter the hosts"});
  }
  return request.launcher;
}

// What a launcher that starts ranks itself cannot give them.
void check_given_ranks(const std::string& launcher, const LaunchRequest& request) {
  if (launcher == "pdsh") return;
  const std::pair<const char*, bool> options[] = {
      {"--enable_each_rank_log", !request.enable_each_rank_log.empty()},
      {"--save_pid", request.save_pid},
      {"--bind_cores_to_rank", request.bind_cores_to_rank && launcher != "impi"}};
  for (const auto& [option, given] : options) {
    if (!given) continue;
    throw Error(ErrorKind::kUsage,
                {fmt::format("{} does not work with --launcher {}, which starts the ranks itself", option, launcher),
                 kCommandLine, "leave it out, or use --launcher ssh"});
  }
}

bool asks_other_program(const std::string& launcher) { return launcher != kLocal && launcher != kSsh; }

// PYTHONPATH's folder and the variables of .deepspeed_env go to other hosts.
Environment environment_for_others(const LaunchRequest& request, const std::string& folder) {
  const Environment own = own_environment();
  Environment result = request.environment;
  for (const auto& [name, value] : read_environment_file(environment_file_name())) result.insert_or_assign(name, value);
  for (const auto& [name, value] : exported_variables(own, {"NCCL"})) result.emplace(name, value);
  if (!request.program.interpreter.empty()) result["PYTHONPATH"] = python_path_with(folder, own);
  return result;
}

ClusterPlan planned(const Launch& launch) {
  ClusterPlan cluster = cluster_plan(launch.request, launch.hosts);
  cluster.sets_devices = !launch.request.hostfile.empty() || !launch.request.include.empty();
  if (launch.launcher == kSsh) {
    if (!launch.request.program_file.empty()) {
      cluster.program.name = std::filesystem::canonical(launch.request.program_file).string();
    }
    cluster.environment = environment_for_others(launch.request, std::filesystem::current_path().string());
  }
  return cluster;
}

RemoteCommand remote_command(const Launch& launch) {
  RemoteRun run{.request = launch.request,
                .pool = launch.pool,
                .hosts = launch.hosts,
                .world_info = encode_world_info(launch.hosts),
                .folder = std::filesystem::current_path().string(),
                .hostfile = launch.request.hostfile,
                .node_launcher = {own_program(), "launch"},
                .pdsh_ssh_arguments = env_text("PDSH_SSH_ARGS_APPEND").value_or(""),
                .hosts_are_slurms = hosts_are_slurms(launch.request)};
  if (!run.request.program_file.empty()) {
    run.request.program.name = std::filesystem::canonical(run.request.program_file).string();
  } else if (run.hosts_are_slurms) {
    run.rank_starter = slurm_task_words(run.request.program);
  }
  const RemoteLauncher& launcher = remote_launchers().find(launch.launcher, "--launcher").make;
  if (!run.hosts_are_slurms) require_no_open_secret(own_environment());
  run.exports = launcher.own_exports();
  for (const auto& [name, value] : environment_for_others(run.request, run.folder)) {
    set_export(run.exports, name, launcher.quoted(value));
  }
  check_remote_slots(launch.launcher, run);
  return launcher.command(run);
}

RunOutcome run_here(const Launch& launch) {
  ClusterPlan cluster = planned(launch);
  const bool leads = launch.request.node_rank <= 0;
  if (cluster.master_port != 0 && leads) require_free_port(cluster.master_port);
  if (cluster.master_addr.empty()) cluster.master_addr = "127.0.0.1";
  FreePort picked;  // claimed until the run ends
  if (cluster.master_port == 0 && launch.hosts.size() == 1) picked = pick_free_port();
  if (cluster.master_port == 0) cluster.master_port = picked.number != 0 ? picked.number : kDefaultPort;
  return run_node(cluster, {.node_rank = std::max(launch.request.node_rank, 0),
                            .pid_file = launch.request.save_pid ? static_cast<int>(getpid()) : 0,
                            .shares_cores = true,
                            .file = launch.request.program_file});
}

RunOutcome run_by_ssh(const Launch& launch) {
  ClusterPlan cluster = planned(launch);
  if (cluster.master_port == 0) cluster.master_port = kDefaultPort;
  if (cluster.master_addr.empty()) cluster.master_addr = address_of_host(launch.request, launch.hosts.front().host);
  const std::string named = run_secret();
  // Over ssh's own channel, so that it need not be in a file on every host.
  if (!cluster.environment.contains("TESSERA_SECRET_FILE")) {
    cluster.environment["TESSERA_SECRET"] = named.empty() ? make_run_secret() : named;
  }
  return run_ssh(
      cluster,
      {.request = launch.request, .program = own_program(), .folder = std::filesystem::current_path().string()});
}

}  // namespace

std::vector<std::string> launcher_names() {
  std::vector<std::string> names = {kLocal, kSsh};
  for (const std::string& name : remote_launchers().names()) names.push_back(name);
  return names;
}

Launch decide(const LaunchRequest& request) {
  check_host_options(request);
  check_core_options(request.bind_cores_to_rank, request.bind_core_list);
  Launch launch{.request = request, .pool = pool_of(request)};
  launch.hosts = choose_hosts(request, launch.pool);
  launch.launcher = launcher_of(request, launch.hosts);
  if (request.no_ssh) check_own_node_rank(request, launch.hosts);
  if (request.no_ssh && launch.hosts.size() > 1 && request.master_addr.empty()) {
    throw Error(ErrorKind::kUsage, {"--no_ssh needs --master_addr: without ssh the address of rank 0 cannot be found",
                                    kCommandLine, "give --master_addr"});
  }
  if (asks_other_program(launch.launcher)) {
    check_remote_options(launch.launcher, request);
    check_given_ranks(launch.launcher, request);
    if (launch.request.master_port == 0 && !hosts_are_slurms(request)) launch.request.master_port = kDefaultPort;
  }
  return launch;
}

std::string launch_text(const Launch& launch) {
  if (asks_other_program(launch.launcher)) return shell_command(remote_command(launch).arguments) + "\n";
  ClusterPlan cluster = planned(launch);
  const std::string& first = launch.hosts.front().host;
  if (cluster.master_addr.empty()) cluster.master_addr = launch.launcher == kLocal ? "127.0.0.1" : first;
  if (cluster.master_port == 0 && launch.launcher == kSsh) cluster.master_port = kDefaultPort;
  std::string text = plan_text(cluster);
  if (!launch.request.environment.empty()) text += "every rank gets\n";
  for (const auto& [name, value] : launch.request.environment) text += fmt::format("  {}={}\n", name, value);
  if (launch.launcher == kLocal) return text;
  const SshRun run{.request = launch.request, .program = own_program(), .folder = "."};
  for (const RankPlan& plan : plan_ssh(cluster, run)) text += shell_command(plan.command) + "\n";
  return text;
}

RunOutcome run(const Launch& launch) {
  if (launch.launcher == kLocal) return run_here(launch);
  if (launch.launcher == kSsh) return run_by_ssh(launch);
  require_launcher_installed(launch.launcher);
  Launch addressed = launch;
  // Slurm's tasks know the first host of their step.
  if (addressed.request.master_addr.empty() && launch.launcher != kSlurmLauncher) {
    addressed.request.master_addr = address_of_host(launch.request, launch.hosts.front().host);
  }
  RemoteCommand command = remote_command(addressed);
  if (hosts_are_slurms(launch.request) && run_secret().empty()) {
    command.environment["TESSERA_SECRET"] = make_run_secret();
  }
  log_info("{}", shell_command(command.arguments));
  return run_remote(launch.launcher, command);
}

}  // namespace tessera::launch

#include "tessera/launch/accelerate_request.h"

#include <fmt/format.h>

#include <filesystem>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/launch/accelerate_config.h"

namespace tessera::launch {
namespace {

using Runs = AccelerateConfig::Runs;

constexpr const char* kEachMachineOfAHostfile = "nossh";  // the command is given on each

void fill(std::string& field, const std::string& value) {
  if (field.empty()) field = value;
}

int ranks_of_a_machine(const AccelerateConfig& config, int machines, const std::string& path) {
  if (!config.num_processes) {
    throw Error(ErrorKind::kUsage, {"the configuration leaves the number of processes to the command line", path,
                                    "give --nproc, the number of each machine"});
  }
  if (*config.num_processes % machines == 0) return *config.num_processes / machines;
  throw Error(ErrorKind::kUsage, {fmt::format("{} processes (num_processes) do not divide among {} machines",
                                              *config.num_processes, machines),
                                  path, "change --num_nodes, or give --nproc"});
}

// What one process, or a file of one machine, has no use for.
void check_fits(const LaunchRequest& given, const AccelerateConfig& config, const std::string& path) {
  if (config.runs == Runs::kProgram && (config.num_processes.value_or(1) > 1 || config.num_machines > 1)) {
    throw Error(ErrorKind::kConfig, {"'distributed_type' is 'NO', which is one process on one machine", path,
                                     "write MULTI_CPU, MULTI_GPU or DEEPSPEED"});
  }
  const bool by_hostfile = config.uses_hostfile();
  if (!given.hostfile.empty() && (config.num_machines == 1 || !by_hostfile)) {
    throw Error(ErrorKind::kUsage,
                {"--hostfile and --config are both given, and the configuration's run is not started by a hostfile",
                 path, "write DEEPSPEED, num_machines and deepspeed_multinode_launcher there, or leave one out"});
  }
  if (config.num_machines == 1 && !config.deepspeed.hostfile.empty()) {
    log_warning("{}: 'deepspeed_hostfile' acts only where num_machines is more than 1", path);
  }
  if (config.num_machines > 1 && by_hostfile && !config.gpu_ids.empty()) {
    throw Error(ErrorKind::kConfig, {"'gpu_ids' is given, and the slots of a hostfile say which devices are used", path,
                                     "write deepspeed_inclusion_filter instead, as in worker-0:0,1@worker-1:0,1"});
  }
}

void fill_hosts(LaunchRequest& request, const AccelerateConfig& config, int machines) {
  const AccelerateConfig::DeepSpeed& deepspeed = config.deepspeed;
  fill(request.master_addr, config.main_process_ip);
  if (request.master_port == 0) request.master_port = config.main_process_port.value_or(0);
  if (machines == 1) return;
  const bool by_hostfile = config.uses_hostfile();
  if (by_hostfile) fill(request.hostfile, deepspeed.hostfile);
  if (!by_hostfile || deepspeed.multinode_launcher == kEachMachineOfAHostfile) {
    request.no_ssh = true;
    if (request.node_rank < 0) request.node_rank = config.machine_rank;
  } else if (!request.no_ssh) {
    fill(request.launcher, deepspeed.multinode_launcher);
  }
  if (!by_hostfile || !request.include.empty() || !request.exclude.empty()) return;
  request.exclude = deepspeed.exclusion_filter;
  request.include = deepspeed.inclusion_filter;
}

// As Accelerate adds to it.
std::string python_path_after() {
  const std::string own = env_text("PYTHONPATH").value_or("");
  return (own.empty() ? "" : own + ":") + std::filesystem::current_path().string();
}

}  // namespace

LaunchRequest accelerate_request(const LaunchRequest& given, const std::string& path) {
  const AccelerateConfig config = load_accelerate_config(path);
  for (const std::string& warning : config.warnings) log_warning("{}", warning);
  check_fits(given, config, path);
  LaunchRequest request = given;
  const int machines = given.num_nodes > 0 ? given.num_nodes : config.num_machines;
  fill_hosts(request, config, machines);
  // A filter says how many ranks each host has.
  if (request.include.empty() && request.exclude.empty()) {
    if (request.num_gpus == -1) request.num_gpus = ranks_of_a_machine(config, machines, path);
    if (machines > 1) request.num_nodes = machines;
  }
  request.program.passes_local_rank = false;
  request.environment = config.variables;
  if (!given.include.empty()) request.environment.erase("CUDA_VISIBLE_DEVICES");
  if (config.runs == Runs::kDeepSpeed) request.environment["PYTHONPATH"] = python_path_after();
  return request;
}

}  // namespace tessera::launch

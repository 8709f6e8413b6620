#include "tessera/launch/slurm_job.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/slurm_lists.h"

namespace tessera::launch {
namespace {

constexpr const char* kHosts = "SLURM_JOB_NODELIST";
constexpr const char* kTasks = "SLURM_TASKS_PER_NODE";

// Of each host; empty where the job was given none: Slurm then counts something else.
std::vector<int> tasks_of_hosts() {
  if (!env_text("SLURM_NTASKS") && !env_text("SLURM_NTASKS_PER_NODE")) return {};
  const auto text = env_text(kTasks);
  return text ? slurm_counts(*text, kTasks) : std::vector<int>{};
}

std::vector<HostSlots> hosts_of_job(const std::vector<std::string>& names, int slots) {
  const std::vector<int> tasks = tasks_of_hosts();
  const bool by_tasks = slots < 1 && tasks.size() == names.size();
  std::vector<HostSlots> hosts;
  for (size_t i = 0; i < names.size(); ++i) {
    hosts.push_back({names[i], first_slots(by_tasks ? tasks[i] : std::max(slots, 1))});
  }
  return hosts;
}

std::vector<HostSlots> hosts_to_ask_for(const LaunchRequest& request) {
  if (!request.include.empty() || !request.exclude.empty()) {
    throw Error(ErrorKind::kUsage,
                {"this process is in no job of Slurm's, so there are no hosts to choose from", "--include or --exclude",
                 "name a hostfile (-H), or let srun choose: --launcher_args '--nodelist=…'"});
  }
  std::vector<HostSlots> hosts;
  for (int node = 0; node < std::max(request.num_nodes, 1); ++node) {
    hosts.push_back({fmt::format("node-{}", node), first_slots(std::max(request.num_gpus, 1))});
  }
  return hosts;
}

}  // namespace

std::vector<HostSlots> slurm_pool(const LaunchRequest& request) {
  const bool in_job = env_text("SLURM_JOB_ID") && !request.to_submit;
  const auto list = in_job ? env_text(kHosts) : std::nullopt;
  if (!list) return hosts_to_ask_for(request);
  const std::vector<std::string> names = slurm_hosts(*list, kHosts);
  if (request.num_nodes > static_cast<int>(names.size())) {
    throw Error(ErrorKind::kUsage,
                {fmt::format("--num_nodes is {}, and the job has {}", request.num_nodes,
                             count_of(static_cast<int64_t>(names.size()), "node")),
                 "the command line", fmt::format("use at most {}, or ask for more by sbatch --nodes", names.size())});
  }
  return hosts_of_job(names, request.num_gpus);
}

}  // namespace tessera::launch

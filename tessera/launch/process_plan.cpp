#include "tessera/launch/process_plan.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/launch/cluster_plan.h"

namespace tessera::launch {

std::string name_of(const RankPlan& plan) { return plan.name.empty() ? fmt::format("rank {}", plan.rank) : plan.name; }

std::vector<RankPlan> plan_local(const LaunchOptions& run, const Host& host) {
  if (run.nproc < 1) {
    throw Error(ErrorKind::kUsage, {fmt::format("--nproc is {}", run.nproc), "", "use 1 or more ranks"});
  }
  if (run.command.empty() || run.command[0].empty()) {
    throw Error(ErrorKind::kUsage,
                {"there is no program to launch", "", "name one: tessera launch --nproc 2 PROGRAM ARGS..."});
  }
  const ClusterPlan cluster{
      .hosts = {{"localhost", first_slots(run.nproc)}},
      .program = {.name = run.command[0], .arguments = {run.command.begin() + 1, run.command.end()}},
      .master_addr = run.master_addr,
      .master_port = host.master_port,
      .environment = run.extra_environment,
      .output = run.output};
  return plan_node(cluster, {.cores = host.omp_threads_given ? 0 : host.cores, .secret = host.secret});
}

}  // namespace tessera::launch

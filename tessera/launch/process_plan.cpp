#include "tessera/launch/process_plan.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::launch {

std::vector<RankPlan> plan_local(const LaunchOptions& run, const Host& host) {
  if (run.nproc < 1) {
    throw Error(ErrorKind::kUsage, {fmt::format("--nproc is {}", run.nproc), "", "use 1 or more ranks"});
  }
  if (run.command.empty() || run.command[0].empty()) {
    throw Error(ErrorKind::kUsage,
                {"there is no program to launch", "", "name one: tessera launch --nproc 2 PROGRAM ARGS..."});
  }
  Environment shared = run.extra_environment;
  if (!host.omp_threads_given) {
    shared.emplace("OMP_NUM_THREADS", std::to_string(threads_per_rank(host.cores, run.nproc)));
  }
  if (!host.secret.empty()) shared.emplace("TESSERA_SECRET", host.secret);
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < run.nproc; ++rank) {
    RankPlan plan{.rank = rank, .command = run.command};
    plan.environment = rank_variables({.rank = rank,
                                       .world_size = run.nproc,
                                       .local_rank = rank,
                                       .local_world_size = run.nproc,
                                       .master_addr = run.master_addr,
                                       .master_port = host.master_port});
    plan.environment.insert(shared.begin(), shared.end());
    plan.inherits_input = rank == 0;
    plan.plain_output = rank == 0 && run.output == LaunchOptions::Output::kRankZeroPlain;
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace tessera::launch

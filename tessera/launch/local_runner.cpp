#include "tessera/launch/local_runner.h"

#include <algorithm>
#include <thread>

#include "tessera/base/env.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/run_secret.h"
#include "tessera/launch/free_port.h"
#include "tessera/launch/planned_ranks.h"
#include "tessera/launch/process_plan.h"
#include "tessera/launch/program_path.h"

namespace tessera::launch {

int run_local(const LaunchOptions& run) {
  const Host cores_only{.cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))};
  plan_local(run, cores_only);  // refuses a wrong run before the machine is asked for anything
  const std::string program = run.program.empty() ? program_path(run.command[0]) : run.program;
  if (run.master_port != 0) require_free_port(run.master_port);
  const Host host{.cores = cores_only.cores,
                  .master_port = run.master_port != 0 ? run.master_port : pick_free_port(),
                  .omp_threads_given = env_text("OMP_NUM_THREADS").has_value(),
                  .secret = run_secret().empty() ? make_run_secret() : ""};
  const std::vector<RankPlan> plans = plan_local(run, host);
  if (run.nproc > host.cores) log_info("{} share {}", count_of(run.nproc, "rank"), count_of(host.cores, "core"));
  if (!host.omp_threads_given)
    log_debug("OMP_NUM_THREADS={} for each rank", plans[0].environment.at("OMP_NUM_THREADS"));
  log_debug("the ranks meet at {}:{}", run.master_addr, host.master_port);
  return run_planned(plans, {.grace = run.grace, .ending_time = run.ending_time}, program).code;
}

}  // namespace tessera::launch

#include "tessera/launch/local_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/run_secret.h"
#include "tessera/launch/free_port.h"
#include "tessera/launch/planned_ranks.h"
#include "tessera/launch/process_plan.h"
#include "tessera/launch/program_path.h"

namespace tessera::launch {

namespace {

RunOutcome run_once(const LaunchOptions& run) {
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
  return run_planned(plans, {.grace = run.grace, .ending_time = run.ending_time}, program);
}

// Of the next life: as many as before, unless one of them was killed and the run can do with fewer.
int ranks_after(const RankExit& failure, const LaunchOptions& run) {
  const Restarts& restarts = run.restarts;
  if (restarts.fewest_ranks < 1 || !probably_out_of_memory(failure)) return run.nproc;
  for (int nproc = run.nproc - 1; nproc >= restarts.fewest_ranks; --nproc) {
    if (!restarts.can_run || restarts.can_run(nproc)) return nproc;
  }
  return run.nproc;
}

void count_restart(LaunchOptions& run, int restart) {
  run.extra_environment["TORCHELASTIC_RESTART_COUNT"] = std::to_string(restart);
  run.extra_environment["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(run.restarts.at_most);
}

// Whether there is to be another life after one that ended so; says why where somebody might expect one.
bool starts_again(const RunOutcome& outcome, const Restarts& restarts, int restart) {
  if (restarts.at_most == 0 || outcome.told_to_end || !outcome.failure) return false;
  if (outcome.code == exit_code(ErrorKind::kUsage)) {
    log_info("not started again: exit code {} says that something has to be put right first", outcome.code);
    return false;
  }
  if (restart < restarts.at_most) return true;
  log_info("not started again: that was restart {} of {}", restart, restarts.at_most);
  return false;
}

}  // namespace

int run_local(const LaunchOptions& asked) {
  LaunchOptions run = asked;
  if (run.restarts.at_most > 0) count_restart(run, 0);
  for (int restart = 0;; ++restart) {
    const RunOutcome outcome = run_once(run);
    if (!starts_again(outcome, run.restarts, restart)) return outcome.code;
    const int before = std::exchange(run.nproc, ranks_after(*outcome.failure, run));
    count_restart(run, restart + 1);
    if (run.restarts.prepare) run.restarts.prepare(run);
    log_info("restart {} of {}{}", restart + 1, run.restarts.at_most,
             run.nproc == before ? "" : fmt::format(", on {} instead of {}", count_of(run.nproc, "rank"), before));
  }
}

}  // namespace tessera::launch

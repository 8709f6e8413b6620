#include "tessera/launch/restarts.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/launch/cluster_plan.h"

namespace tessera::launch {
namespace {

constexpr const char* kFlagsGiven = "the command line, --max-restarts";

// Of the next life: as many as before, unless one of them was killed and the run can do with fewer.
int ranks_after(const RankExit& failure, int ranks, const Restarts& restarts) {
  if (restarts.fewest_ranks < 1 || !probably_out_of_memory(failure)) return ranks;
  for (int fewer = ranks - 1; fewer >= restarts.fewest_ranks; --fewer) {
    if (!restarts.can_run || restarts.can_run(fewer)) return fewer;
  }
  return ranks;
}

void count_restart(Launch& launch, int restart, const Restarts& restarts) {
  launch.request.environment["TORCHELASTIC_RESTART_COUNT"] = std::to_string(restart);
  launch.request.environment["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(restarts.at_most);
}

// Whether there is to be another life after one that ended so; says why where somebody might expect one.
bool starts_again(const RunOutcome& outcome, int restart, const Restarts& restarts) {
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

void check_restarts(const Restarts& restarts, const Launch& launch) {
  if (restarts.at_most == 0 && restarts.fewest_ranks > 0) {
    throw Error(ErrorKind::kUsage, {"--min-nproc is for runs that are started again, and this is not one", kFlagsGiven,
                                    "add --max-restarts, or leave it out"});
  }
  if (restarts.at_most == 0) return;
  if (launch.launcher != "local" && launch.launcher != "ssh") {
    throw Error(ErrorKind::kUsage, {fmt::format("--max-restarts does not work with --launcher {}, which starts the "
                                                "ranks itself",
                                                launch.launcher),
                                    kFlagsGiven, "leave it out, or use --launcher ssh"});
  }
  if (launch.request.no_ssh && launch.hosts.size() > 1) {
    throw Error(ErrorKind::kUsage, {"--max-restarts does not work with --no_ssh on several hosts, whose launchers do "
                                    "not know of each other",
                                    kFlagsGiven, "leave it out, or use --launcher ssh"});
  }
  if (restarts.fewest_ranks > 0 && launch.hosts.size() > 1) {
    throw Error(ErrorKind::kUsage, {"--min-nproc is for ranks of one host", kFlagsGiven, "leave it out"});
  }
  const int ranks = rank_count(launch.hosts);
  if (restarts.fewest_ranks > ranks) {
    throw Error(ErrorKind::kUsage, {fmt::format("--min-nproc {} is more than the {} that are started",
                                                restarts.fewest_ranks, count_of(ranks, "rank")),
                                    kFlagsGiven, "use at most the number of ranks"});
  }
}

int run_with_restarts(const Launch& first, const Restarts& restarts) {
  Launch launch = first;
  if (restarts.at_most > 0) count_restart(launch, 0, restarts);
  for (int restart = 0;; ++restart) {
    const RunOutcome outcome = run(launch);
    if (!starts_again(outcome, restart, restarts)) return outcome.code;
    const int before = rank_count(launch.hosts);
    const int ranks = ranks_after(*outcome.failure, before, restarts);
    if (ranks != before) launch.hosts.front().slots.resize(static_cast<size_t>(ranks));
    count_restart(launch, restart + 1, restarts);
    if (restarts.prepare) restarts.prepare(launch);
    log_info("restart {} of {}{}", restart + 1, restarts.at_most,
             ranks == before ? "" : fmt::format(", on {} instead of {}", count_of(ranks, "rank"), before));
  }
}

}  // namespace tessera::launch

#include "tessera/launch/restarts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/signals.h"
#include "tessera/launch/cluster_plan.h"
#include "tessera/launch/host_line.h"

namespace tessera::launch {
namespace {

constexpr std::chrono::seconds kEndOfSilentRanks{6};  // node_part.h: SIGTERM, 4 s, SIGKILL
constexpr const char* kFlagsGiven = "the command line, --max-restarts";

// Of the next life: as many as before, unless some of them are given up and the run can do with fewer.
int ranks_after(const RunOutcome& outcome, const std::vector<HostSlots>& hosts, const Restarts& restarts) {
  const int ranks = rank_count(hosts);
  if (restarts.fewest_ranks < 1) return ranks;
  if (!outcome.lost_host && !was_killed_outright(*outcome.failure)) return ranks;
  const int given_up = outcome.lost_host ? static_cast<int>(hosts.at(outcome.failed_plan).slots.size()) : 1;
  for (int fewer = ranks - given_up; fewer >= restarts.fewest_ranks; --fewer) {
    if (!restarts.can_run || restarts.can_run(fewer)) return fewer;
  }
  return ranks;
}

// Until the ranks of a lost host have ended: its launcher may have heard of us up to the moment at which we gave it up.
void wait_for_end_of(const std::string& host) {
  const std::chrono::seconds time = allowed_silence() + kEndOfSilentRanks;
  log_info("waiting {} until what may still run on {} has ended by itself", format_duration(time), host);
  std::this_thread::sleep_for(time);
}

// The hosts of the next life, where it has fewer ranks.
void give_up(Launch& launch, size_t failed, int ranks) {
  const std::string first = launch.hosts.front().host;
  launch.hosts = hosts_left(launch.hosts, failed, ranks);
  if (launch.hosts.front().host != first) launch.request.master_addr.clear();  // rank 0 is elsewhere
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
  if (outcome.code == kRequeueCode) {
    log_info("not started again: exit code {} asks a scheduler for that, later", outcome.code);
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
  const int ranks = rank_count(launch.hosts);
  if (restarts.fewest_ranks > ranks) {
    throw Error(ErrorKind::kUsage, {fmt::format("--min-nproc {} is more than the {} that are started",
                                                restarts.fewest_ranks, count_of(ranks, "rank")),
                                    kFlagsGiven, "use at most the number of ranks"});
  }
}

std::vector<HostSlots> hosts_left(std::vector<HostSlots> hosts, size_t failed, int ranks) {
  int given_up = rank_count(hosts) - ranks;
  const auto take_from = [&](HostSlots& host) {
    const int taken = std::min(given_up, static_cast<int>(host.slots.size()));
    host.slots.resize(host.slots.size() - static_cast<size_t>(taken));
    given_up -= taken;
  };
  take_from(hosts.at(failed));
  std::for_each(hosts.rbegin(), hosts.rend(), take_from);
  std::erase_if(hosts, [](const HostSlots& host) { return host.slots.empty(); });
  return hosts;
}

int run_with_restarts(const Launch& first, const Restarts& restarts) {
  Launch launch = first;
  if (restarts.at_most > 0) count_restart(launch, 0, restarts);
  for (int restart = 0;; ++restart) {
    const RunOutcome outcome = run(launch);
    if (!starts_again(outcome, restart, restarts)) return outcome.code;
    const int before = rank_count(launch.hosts);
    const int ranks = ranks_after(outcome, launch.hosts, restarts);
    // Of ranks on one host the plans are the ranks, of others the hosts.
    const size_t failed = launch.launcher == "ssh" ? outcome.failed_plan : 0;
    if (outcome.lost_host) wait_for_end_of(launch.hosts.at(failed).host);
    if (ranks != before) give_up(launch, failed, ranks);
    count_restart(launch, restart + 1, restarts);
    if (restarts.prepare) restarts.prepare(launch);
    log_info("restart {} of {}{}", restart + 1, restarts.at_most,
             ranks == before ? "" : fmt::format(", on {} instead of {}", count_of(ranks, "rank"), before));
  }
}

}  // namespace tessera::launch

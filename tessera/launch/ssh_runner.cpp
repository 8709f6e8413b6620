#include "tessera/launch/ssh_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/shell.h"
#include "tessera/launch/host_line.h"
#include "tessera/launch/node_part.h"
#include "tessera/launch/planned_ranks.h"
#include "tessera/launch/this_host.h"

namespace tessera::launch {
namespace {

// Longer than what the other side takes to stop its ranks and to say so (Supervision's own times there).
constexpr std::chrono::milliseconds kGrace{10000};
constexpr std::chrono::milliseconds kEndingTime{70000};
constexpr std::chrono::seconds kLongestConnecting{20};

std::string output_of(const std::vector<std::string>& words) {
  const std::string command = shell_command(words) + " </dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "re"), pclose);
  std::string text;
  std::array<char, 4096> bytes;
  while (pipe != nullptr) {
    const size_t count = fread(bytes.data(), 1, bytes.size(), pipe.get());
    if (count == 0) break;
    text.append(bytes.data(), count);
  }
  return text;
}

}  // namespace

std::vector<std::string> ssh_words(const LaunchRequest& request, const std::string& host) {
  // ssh itself gives up later than we do (host_line.h), who say more.
  const auto silence = allowed_silence();
  const auto connecting = std::min<std::chrono::seconds>(silence, kLongestConnecting);
  std::vector<std::string> words = {"ssh",
                                    "-o",
                                    "BatchMode=yes",
                                    "-o",
                                    fmt::format("ConnectTimeout={}", connecting.count()),
                                    "-o",
                                    fmt::format("ServerAliveInterval={}", (silence.count() + 1) / 2),
                                    "-o",
                                    "ServerAliveCountMax=3"};
  if (request.ssh_port > 0) words.insert(words.end(), {"-p", std::to_string(request.ssh_port)});
  const std::vector<std::string> given = shell_words(request.launcher_args, "--launcher_args");
  words.insert(words.end(), given.begin(), given.end());
  words.push_back(host);
  return words;
}

std::vector<RankPlan> plan_ssh(const ClusterPlan& cluster, const SshRun& run) {
  const std::string setup = run.request.venv_script.empty() ? "" : ". " + shell_quote(run.request.venv_script) + " && ";
  std::vector<RankPlan> plans;
  for (size_t node = 0; node < cluster.hosts.size(); ++node) {
    const std::string& host = cluster.hosts[node].host;
    RankPlan& plan = plans.emplace_back();
    plan.rank = static_cast<int>(node);
    plan.name = host;
    plan.command = ssh_words(run.request, host);
    plan.command.push_back(setup + "exec " + shell_quote(run.program) + " launch --node-part");
    plan.first_input = node_part_line({.cluster = cluster,
                                       .node_rank = static_cast<int>(node),
                                       .saves_pid = run.request.save_pid,
                                       .silence = allowed_silence(),
                                       .folder = run.folder});
  }
  return plans;
}

RunOutcome run_ssh(const ClusterPlan& cluster, const SshRun& run) {
  std::vector<RankPlan> plans = plan_ssh(cluster, run);
  for (RankPlan& plan : plans) plan.is_here = is_this_host(plan.name);
  return run_planned(plans, {.grace = kGrace, .ending_time = kEndingTime, .silence = allowed_silence()});
}

std::string address_of_host(const LaunchRequest& request, const std::string& host) {
  std::vector<std::string> words = is_this_host(host) ? std::vector<std::string>{} : ssh_words(request, host);
  words.insert(words.end(), {"hostname", "-I"});
  const std::string text = output_of(words);
  const std::string address = text.substr(0, text.find_first_of(" \n"));
  if (!address.empty()) return address;
  throw Error(ErrorKind::kMachine, {fmt::format("cannot find the address of {}", host), shell_command(words),
                                    "see that its network is up, or give the address with --master_addr"});
}

}  // namespace tessera::launch

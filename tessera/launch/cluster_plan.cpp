#include "tessera/launch/cluster_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/shell.h"
#include "tessera/launch/core_binding.h"

namespace tessera::launch {
namespace {

std::string index_advice(size_t hosts) { return hosts == 1 ? "use 0" : fmt::format("use 0 to {}", hosts - 1); }

std::string prefix_of_rank(const NodeFacts& node, int rank) {
  return node.label.empty() ? fmt::format("[rank {}] ", rank) : fmt::format("[{} rank {}] ", node.label, rank);
}

}  // namespace

std::vector<RankPlan> plan_node(const ClusterPlan& cluster, const NodeFacts& node) {
  check_node_rank(cluster.hosts, node.node_rank);
  const std::vector<int>& slots = cluster.hosts[static_cast<size_t>(node.node_rank)].slots;
  const int local_size = static_cast<int>(slots.size());
  Environment shared = cluster.environment;
  if (node.cores > 0) shared.emplace("OMP_NUM_THREADS", std::to_string(threads_per_rank(node.cores, local_size)));
  if (!node.secret.empty()) shared.emplace("TESSERA_SECRET", node.secret);
  std::vector<RankPlan> plans;
  for (int local_rank = 0; local_rank < local_size; ++local_rank) {
    RankPlan plan{.rank = first_rank(cluster.hosts, node.node_rank) + local_rank};
    plan.environment = rank_variables({.rank = plan.rank,
                                       .world_size = rank_count(cluster.hosts),
                                       .local_rank = local_rank,
                                       .local_world_size = local_size,
                                       .node_rank = node.node_rank,
                                       .nodes = static_cast<int>(cluster.hosts.size()),
                                       .master_addr = cluster.master_addr,
                                       .master_port = cluster.master_port});
    if (cluster.sets_devices) plan.environment["CUDA_VISIBLE_DEVICES"] = fmt::format("{}", fmt::join(slots, ","));
    plan.command = command_of(cluster.program, local_rank);
    if (cluster.binds_cores) {
      const CoreBinding binding = bind_cores({.core_list = cluster.core_list,
                                              .numa_nodes = node.numa_nodes,
                                              .ranks = local_size,
                                              .local_rank = local_rank});
      plan.command.insert(plan.command.begin(), binding.command.begin(), binding.command.end());
      plan.environment["OMP_NUM_THREADS"] = std::to_string(binding.cores.size());
    }
    plan.environment.insert(shared.begin(), shared.end());
    plan.inherits_input = local_rank == 0;
    plan.prefix = prefix_of_rank(node, plan.rank);
    plan.plain_output = plan.rank == 0 && cluster.output == RankOutput::kRankZeroPlain;
    if (!cluster.log_folder.empty()) {
      plan.log_file = fmt::format("{}/{}_rank{}.log", cluster.log_folder, node.time, plan.rank);
    }
    plan.inherits_output = plan.log_file.empty() && cluster.output == RankOutput::kInherited;
    plans.push_back(std::move(plan));
  }
  return plans;
}

int first_rank(const std::vector<HostSlots>& hosts, int node_rank) {
  return rank_count({hosts.begin(), hosts.begin() + node_rank});
}

void check_node_rank(const std::vector<HostSlots>& hosts, int node_rank) {
  if (node_rank >= 0 && node_rank < static_cast<int>(hosts.size())) return;
  throw Error(ErrorKind::kUsage,
              {fmt::format("--node_rank is {}, but there {} {}", node_rank, hosts.size() == 1 ? "is" : "are",
                           count_of(static_cast<int64_t>(hosts.size()), "machine")),
               "the command line", index_advice(hosts.size())});
}

void check_own_node_rank(const LaunchRequest& request, const std::vector<HostSlots>& hosts) {
  if (request.node_rank >= 0 && request.node_rank < static_cast<int>(hosts.size())) return;
  std::vector<std::string> names;
  for (const HostSlots& host : hosts) names.push_back(host.host);
  throw Error(ErrorKind::kUsage,
              {request.node_rank < 0 ? std::string("--no_ssh needs --node_rank: the index of this machine")
                                     : fmt::format("--node_rank is {}, and the machines are {}", request.node_rank,
                                                   fmt::join(names, ", ")),
               "the command line", index_advice(hosts.size())});
}

ClusterPlan cluster_plan(const LaunchRequest& request, const std::vector<HostSlots>& hosts) {
  return {.hosts = hosts,
          .program = request.program,
          .master_addr = request.master_addr,
          .master_port = request.master_port,
          .binds_cores = request.bind_cores_to_rank,
          .core_list = request.bind_core_list,
          .log_folder = request.enable_each_rank_log,
          .environment = request.environment,
          .output = request.output};
}

std::string plan_text(const ClusterPlan& cluster) {
  std::string text = fmt::format("{} on {}, which meet at {}:{}\n", count_of(rank_count(cluster.hosts), "rank"),
                                 count_of(static_cast<int64_t>(cluster.hosts.size()), "host"), cluster.master_addr,
                                 cluster.master_port);
  int rank = 0;
  for (const HostSlots& host : cluster.hosts) {
    text +=
        fmt::format("{}: {} {}\n", host.host, host.slots.size() == 1 ? "slot" : "slots", fmt::join(host.slots, ", "));
    for (size_t local_rank = 0; local_rank < host.slots.size(); ++local_rank) {
      text += fmt::format("  rank {}: {}\n", rank++,
                          shell_command(command_of(cluster.program, static_cast<int>(local_rank))));
    }
  }
  return text;
}

}  // namespace tessera::launch

#include "tessera/launch/node_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <thread>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/run_secret.h"
#include "tessera/launch/core_binding.h"
#include "tessera/launch/pid_file.h"
#include "tessera/launch/rank_program.h"

namespace tessera::launch {
namespace {

std::string log_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[16] = "";
  std::strftime(text, sizeof text, "%Y%m%d%H%M%S", &local);
  return text;
}

void make_log_folder(const std::string& folder) {
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (std::filesystem::is_directory(folder)) return;
  throw Error(ErrorKind::kUsage, {fmt::format("cannot write logs to {}: {}", folder, error.message()),
                                  "--enable_each_rank_log", "name a folder that you can write to"});
}

}  // namespace

RunOutcome run_node(const ClusterPlan& given, const NodeRun& run) {
  ClusterPlan cluster = given;
  NodeRun node = run;
  if (cluster.binds_cores && !node.file.empty()) {  // numactl looks up the program itself
    cluster.program.name = std::filesystem::canonical(node.file).string();
    node.file.clear();
  }
  check_node_rank(cluster.hosts, node.node_rank);
  if (node.file.empty()) require_program(cluster.program);
  NodeFacts facts{.node_rank = node.node_rank, .time = log_time(), .label = node.label};
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int ranks = static_cast<int>(cluster.hosts[static_cast<size_t>(node.node_rank)].slots.size());
  if (node.shares_cores && !env_text("OMP_NUM_THREADS")) facts.cores = cores;
  if (node.shares_cores && ranks > cores) log_info("{} share {}", count_of(ranks, "rank"), count_of(cores, "core"));
  if (cluster.binds_cores) {
    require_core_binding();
    facts.numa_nodes = numa_cores();
  }
  if (cluster.hosts.size() == 1 && run_secret().empty()) facts.secret = make_run_secret();
  std::vector<RankPlan> plans = plan_node(cluster, facts);
  for (RankPlan& plan : plans) plan.inherits_input = plan.inherits_input && !node.supervision.obeys_input;
  make_log_folder(cluster.log_folder);
  const PidFile pid_file(node.pid_file);
  log_debug("the ranks meet at {}:{}", cluster.master_addr, cluster.master_port);
  return run_planned(plans, node.supervision, node.file);
}

}  // namespace tessera::launch

// `launch_tool launch …` is `tessera launch …`; `launch_tool plain …` also, but rank 0's output passes through and
// times are short: GRACE_MS and ENDING_MS come from the environment. `launch_tool planned LOGS SCRIPT` runs ranks 4 and
// 5 of a larger run, each with a script and a PLACE of its own; LOGS: a folder for their output, or "-" for ours.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/cli/commands.h"
#include "tessera/launch/free_port.h"
#include "tessera/launch/node_run.h"

namespace {

namespace launch = tessera::launch;

int run_tuned(int argc, char** argv) {
  const launch::FreePort port = launch::pick_free_port();
  launch::ClusterPlan cluster{.hosts = {{"localhost", launch::first_slots(std::atoi(argv[2]))}},
                              .program = {.name = argv[3], .arguments = {argv + 4, argv + argc}},
                              .master_port = port.number};
  if (std::strcmp(argv[1], "plain") == 0) cluster.output = launch::RankOutput::kRankZeroPlain;
  launch::NodeRun node{.shares_cores = true};
  if (const auto grace = tessera::env_int("GRACE_MS")) node.supervision.grace = std::chrono::milliseconds(*grace);
  if (const auto ending = tessera::env_int("ENDING_MS")) {
    node.supervision.ending_time = std::chrono::milliseconds(*ending);
  }
  return launch::run_node(cluster, node).code;
}

int run_two(const std::string& logs, const std::string& script) {
  std::vector<launch::RankPlan> plans;
  for (const int rank : {4, 5}) {
    const std::string name = std::to_string(rank);
    launch::RankPlan& plan = plans.emplace_back();
    plan.rank = rank;
    plan.command = {"sh", "-c", script, "rank" + name};
    plan.environment = {{"PLACE", "place" + name}};
    plan.inherits_output = logs == "-";
    if (logs != "-") plan.log_file = logs + "/" + name;
  }
  return launch::run_planned(plans, {.signal_fails = std::getenv("SIGNAL_FAILS") != nullptr}).code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Launches ranks for tests.", "launch_tool");
  int exit_code = 0;
  tessera::cli::add_launch_command(app, exit_code);
  try {
    if (argc > 3 && (std::strcmp(argv[1], "plain") == 0 || std::strcmp(argv[1], "tuned") == 0)) {
      return run_tuned(argc, argv);
    }
    if (argc == 4 && std::strcmp(argv[1], "planned") == 0) return run_two(argv[2], argv[3]);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return tessera::exit_code(error.kind());
  }
  return exit_code;
}

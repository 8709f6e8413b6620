// tessera launch: any program as ranks on this host, or on the hosts of a hostfile.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/suggest.h"
#include "tessera/cli/check_command.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/launch_flags.h"
#include "tessera/launch/accelerate_request.h"
#include "tessera/launch/node_part.h"
#include "tessera/launch/node_run.h"
#include "tessera/launch/sbatch_script.h"
#include "tessera/launch/slurm_task.h"
#include "tessera/launch/world_info.h"

namespace tessera::cli {
namespace {

// What follows our own options is the program and its arguments, options that look like ours included.
std::vector<std::string> program_words(const CLI::App& command) {
  std::vector<std::string> rest = command.remaining();
  if (!rest.empty() && rest[0] == "--") {
    rest.erase(rest.begin());
    return rest;
  }
  if (rest.empty() || !rest[0].starts_with("-")) return rest;
  const std::string option = rest[0].substr(0, rest[0].find('='));
  std::vector<std::string> known;
  for (const CLI::Option* each : command.get_options()) {
    for (const std::string& name : each->get_lnames()) known.push_back("--" + name);
  }
  const auto nearest = nearest_name(option, known);
  throw Error(ErrorKind::kUsage, {fmt::format("tessera launch has no option '{}'", option), "",
                                  nearest ? fmt::format("did you mean '{}'?", *nearest)
                                          : "put the program's own options after the program"});
}

// One host's ranks, where pdsh has started this launcher on each (remote_commands.h).
int run_as_node(const launch::LaunchRequest& request, const std::string& world_info) {
  launch::ClusterPlan cluster = launch::cluster_plan(request, launch::decode_world_info(world_info));
  cluster.sets_devices = true;
  launch::check_node_rank(cluster.hosts, request.node_rank);
  return launch::run_node(cluster, {.node_rank = request.node_rank,
                                    .pid_file = request.save_pid ? static_cast<int>(getpid()) : 0,
                                    .shares_cores = true,
                                    .label = cluster.hosts[static_cast<size_t>(request.node_rank)].host})
      .code;
}

struct Given {
  LaunchFlags flags = {};
  std::string program = {};
  std::string config = {};
  std::string world_info = {};
  bool checks = false;
  bool prints_json = false;
  bool node_part = false;
  bool slurm_task = false;
};

// `paths` stand where a program would.
int run_check(launch::LaunchRequest request, const Given& given, const std::vector<std::string>& paths) {
  if (given.flags.print_sbatch || given.flags.restarts.at_most > 0) {
    throw Error(ErrorKind::kUsage, {"--check runs once, now: neither --max-restarts nor --print-sbatch goes with it",
                                    "the command line", "leave it out; in a job's script, 'srun tessera check'"});
  }
  if (!given.config.empty()) request = launch::accelerate_request(request, given.config);
  const launch::Launch decided = launch::decide(with_check(request, paths, given.prints_json));
  if (!given.flags.dry_run) return launch::run(decided).code;
  std::fputs(launch::launch_text(decided).c_str(), stdout);
  return 0;
}

int run_command(const CLI::App& command, const Given& given) {
  if (given.node_part) return launch::run_node_part();
  launch::LaunchRequest request = given.flags.made(command);
  const std::vector<std::string> words = program_words(command);
  if (given.checks) return run_check(request, given, words);
  request.program = launch::program_of(words, given.flags.form);
  if (given.slurm_task) launch::become_slurm_task(request.program);
  if (!given.world_info.empty()) return run_as_node(request, given.world_info);
  if (!given.config.empty()) request = launch::accelerate_request(request, given.config);
  if (given.flags.print_sbatch) {
    given.flags.check_print_sbatch();
    const launch::Launch job = launch::decide_for_job(request);
    std::fputs(launch::sbatch_script(job, launch::job_command(request)).c_str(), stdout);
    return 0;
  }
  const launch::Launch decided = launch::decide(request);
  launch::check_restarts(given.flags.restarts, decided);
  if (!given.flags.dry_run) return launch::run_with_restarts(decided, given.flags.restarts);
  std::fputs(launch::launch_text(decided).c_str(), stdout);
  return 0;
}

}  // namespace

void add_launch_command(CLI::App& app, int& exit_code) {
  auto given = std::make_shared<Given>();
  CLI::App* command = app.add_subcommand("launch", "Run a program as several ranks, on this host or on many");
  add_launch_flags(*command, given->flags);
  add_program_flags(*command, given->flags);
  command
      ->add_option("--config,--config_file,--config-file", given->config,
                   "Configuration of Accelerate, which says what these options do not (docs/launching.md)")
      ->type_name("FILE");
  command->add_flag("--dry-run", given->flags.dry_run, "Print what would run where, and start nothing");
  CLI::Option* const check =
      command->add_flag("--check", given->checks,
                        "Run no program, but check the hosts, as 'tessera check' does; files to compare may follow");
  command->add_flag("--json", given->prints_json, "With --check: print JSON")->needs(check);
  // Between launchers: not for people, and so not in --help.
  command->add_option("--world_info", given->world_info)->group("");
  command->add_flag("--node-part", given->node_part)->group("");
  command->add_flag("--slurm-task", given->slurm_task)->group("");
  // CLI11 leaves the words after the first that it does not know alone (prefix_command), but gives "--" to us only
  // while it awaits a positional: this one, which takes none.
  command->add_option("PROGRAM", given->program, "Program, or Python script, to run, followed by its own arguments")
      ->type_name("ARGS...")
      ->check([](const std::string&) { return std::string("left to prefix_command"); });
  command->validate_positionals();
  command->prefix_command();
  command->footer(
      "PROGRAM finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment.\n"
      "A name that ends in .py, or --module, is run as DeepSpeed does: python3 -u PROGRAM --local_rank=K ARGS...\n"
      "When a rank fails, the others are stopped on all hosts, and the exit code is that of the first rank to fail\n"
      "(128 + signal). Ctrl-C is passed on to the ranks, which have 60 s to exit; a second one stops them at once.\n"
      "So is SIGUSR1, upon which a training saves and exits with 75: it is to go on later.\n"
      "docs/launching.md has examples.");
  command->callback([command, given, &exit_code] { exit_code = run_command(*command, *given); });
}

}  // namespace tessera::cli

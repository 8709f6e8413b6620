// tessera check: whether ranks could run, on the hosts where they would, before hours are spent.
#include <memory>
#include <string>
#include <vector>

#include "tessera/check/run_check.h"
#include "tessera/cli/check_command.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/launch_flags.h"
#include "tessera/launch/runners.h"

namespace tessera::cli {
namespace {

struct Given {
  LaunchFlags flags = {};
  std::vector<std::string> paths = {};
  bool prints_json = false;
};

}  // namespace

void add_check_command(CLI::App& app, int& exit_code) {
  auto given = std::make_shared<Given>();
  CLI::App* command = app.add_subcommand("check", "Check that ranks can run together, before hours are spent");
  command->add_option("PATHS", given->paths, "Files and folders that every host should have, with the same contents");
  command->add_option("--nproc", given->flags.nproc, "Number of ranks, on this host")->capture_default_str();
  command->add_flag("--json", given->prints_json, "Print JSON");
  command->footer(
      "Compares the hosts' versions, memory, /dev/shm, clocks and files, checks what collectives compute, and "
      "measures\n"
      "latency and bandwidth between the ranks. For ranks on many hosts, start it with mpirun, srun or torchrun, or "
      "use\n"
      "'tessera launch --check'. Exit code 1: something was found that would stop a run. docs/preflight.md");
  command->callback([command, given, &exit_code] {
    if (given->flags.runs_here(*command)) {
      exit_code = check::check_as_rank(given->paths, given->prints_json);
      return;
    }
    const launch::LaunchRequest request = given->flags.made(*command);
    exit_code = launch::run(launch::decide(with_check(request, given->paths, given->prints_json))).code;
  });
}

}  // namespace tessera::cli

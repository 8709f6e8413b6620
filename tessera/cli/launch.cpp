// tessera launch: any program as N ranks on this host.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/suggest.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/restart_flags.h"
#include "tessera/launch/runners.h"

namespace tessera::cli {
namespace {

// What follows our own options is the program and its arguments, options that look like ours included.
std::vector<std::string> program_of(std::vector<std::string> rest) {
  if (!rest.empty() && rest[0] == "--") {
    rest.erase(rest.begin());
    return rest;
  }
  if (rest.empty() || !rest[0].starts_with("-")) return rest;
  const std::string option = rest[0].substr(0, rest[0].find('='));
  const std::vector<std::string> known = {"--nproc",        "--master-addr", "--master-port",
                                          "--max-restarts", "--min-nproc",   "--help"};
  const auto nearest = nearest_name(option, known);
  throw Error(ErrorKind::kUsage, {fmt::format("tessera launch has no option '{}'", option), "",
                                  nearest ? fmt::format("did you mean '{}'?", *nearest)
                                          : "put the program's own options after the program"});
}

}  // namespace

void add_launch_command(CLI::App& app, int& exit_code) {
  auto run = std::make_shared<launch::LaunchOptions>();
  auto program = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("launch", "Run a program as several ranks on this host");
  command->add_option("--nproc", run->nproc, "Number of ranks")->capture_default_str();
  command->add_option("--master-addr", run->master_addr, "Address where the ranks meet")->capture_default_str();
  command->add_option("--master-port", run->master_port, "Port where the ranks meet (default: a free one)");
  add_restart_flags(*command, run->restarts);
  // CLI11 leaves the words after the first that it does not know alone (prefix_command), but gives "--" to us only
  // while it awaits a positional: this one, which takes none.
  command->add_option("PROGRAM", *program, "Program to run, followed by its own arguments")
      ->type_name("ARGS...")
      ->check([](const std::string&) { return std::string("left to prefix_command"); });
  command->validate_positionals();
  command->prefix_command();
  command->footer(
      "PROGRAM finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment.\n"
      "When a rank fails, the others are stopped, and the exit code is that of the first rank to fail (128 + "
      "signal).\n"
      "Ctrl-C is passed on to the ranks, which have 60 s to exit; a second one stops them at once.");
  command->callback([command, run, program, &exit_code] {
    run->command = program_of(command->remaining());
    check_restart_flags(run->restarts, run->nproc);
    exit_code = launch::launch(*run);
  });
}

}  // namespace tessera::cli

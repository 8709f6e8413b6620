// `launch_tool launch …` is `tessera launch …`; `launch_tool plain …` also, but rank 0's output passes through and
// times are short: GRACE_MS and ENDING_MS come from the environment.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/cli/commands.h"
#include "tessera/launch/local_runner.h"

namespace {

using tessera::launch::LaunchOptions;

int run_tuned(int argc, char** argv) {
  LaunchOptions run;
  run.nproc = std::atoi(argv[2]);
  run.command.assign(argv + 3, argv + argc);
  if (std::strcmp(argv[1], "plain") == 0) run.output = LaunchOptions::Output::kRankZeroPlain;
  if (const auto grace = tessera::env_int("GRACE_MS")) run.grace = std::chrono::milliseconds(*grace);
  if (const auto ending = tessera::env_int("ENDING_MS")) run.ending_time = std::chrono::milliseconds(*ending);
  return tessera::launch::run_local(run);
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
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return tessera::exit_code(error.kind());
  }
  return exit_code;
}

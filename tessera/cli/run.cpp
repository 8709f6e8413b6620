#include "tessera/cli/run.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/suggest.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/usage_errors.h"
#include "tessera/comm/rendezvous.h"

namespace {

// CLI11 says only that a subcommand is required.
void refuse_unknown_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  const std::string given = argv[1];
  std::vector<std::string> known;
  for (const CLI::App* const command : app.get_subcommands(nullptr)) known.push_back(command->get_name());
  if (std::find(known.begin(), known.end(), given) != known.end()) return;
  const auto nearest = tessera::nearest_name(given, known);
  std::string fix = nearest ? "did you mean '" + *nearest + "'? " : "";
  fix += "'tessera --help' lists the commands";
  throw tessera::Error(tessera::ErrorKind::kUsage, {"there is no command '" + given + "'", "the command line", fix});
}

// What a command threw, told as an error of Tessera's.
tessera::Error as_error(const std::exception& thrown) {
  using tessera::Error;
  using tessera::ErrorKind;
  if (const auto* const error = dynamic_cast<const Error*>(&thrown)) return *error;
  if (dynamic_cast<const std::bad_alloc*>(&thrown) != nullptr) {
    return Error(ErrorKind::kMachine,
                 {"out of memory", "this process", "use tessera estimate to see what a run needs and what would fit"});
  }
  if (const auto* const error = dynamic_cast<const std::filesystem::filesystem_error*>(&thrown)) {
    return Error(ErrorKind::kMachine, {tessera::errno_text(error->code().value()), error->path1().string(), ""});
  }
  if (const auto* const error = dynamic_cast<const std::system_error*>(&thrown)) {  // of a thread
    return Error(ErrorKind::kMachine,
                 {tessera::errno_text(error->code().value()), "this process", "raise its limits (ulimit -a)"});
  }
  if (const auto* const error = dynamic_cast<const c10::DistError*>(&thrown)) {  // of a store or of gloo
    return Error(ErrorKind::kPeer,
                 {error->what_without_backtrace(), "this process", "look at the other ranks' output"});
  }
  return Error(ErrorKind::kInternal, {thrown.what(), "", ""});
}

int tell(const tessera::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return tessera::exit_code(error.kind());
}

}  // namespace

int tessera::cli::run(int argc, char** argv) {
  CLI::App app("Train models too large for one device", "tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", TESSERA_VERSION);
  std::signal(SIGPIPE, SIG_IGN);  // a peer that went away is an error with a name, not our end
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit then fails a write, which is reported, instead of killing us
  int exit_code = 0;
  tessera::cli::add_train_command(app, argv[0], exit_code);
  tessera::cli::add_launch_command(app, exit_code);
  tessera::cli::add_estimate_command(app, exit_code);
  tessera::cli::add_generate_command(app, argv[0], exit_code);
  tessera::cli::add_chat_command(app, argv[0], exit_code);
  tessera::cli::add_init_model_command(app);
  tessera::cli::add_checkpoint_command(app, exit_code);
  tessera::cli::add_config_command(app, exit_code);
  tessera::cli::add_bench_command(app);
  tessera::cli::add_env_command(app);
  tessera::cli::add_check_command(app, exit_code);
  try {
    refuse_unknown_command(app, argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& refusal) {
    if (refusal.get_exit_code() == 0) return app.exit(refusal);  // --help, --version
    return tell(tessera::cli::usage_error(app, refusal));
  } catch (const std::exception& thrown) {
    const tessera::Error error = as_error(thrown);
    if (tessera::exit_code(error.kind()) == 2) tessera::comm::let_rank_0_fail_first();
    return tell(error);
  }
  return exit_code;
}

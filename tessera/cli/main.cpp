// The command line's entry: parses, runs one subcommand, and is the only place where a process of ours decides to exit.
#include <cstdio>
#include <exception>

#include "tessera/base/error.h"
#include "tessera/cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Train models too large for one device.", "tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", TESSERA_VERSION);
  int exit_code = 0;
  tessera::cli::add_train_command(app, exit_code);
  tessera::cli::add_launch_command(app, exit_code);
  tessera::cli::add_checkpoint_command(app, exit_code);
  tessera::cli::add_config_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return tessera::exit_code(error.kind());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return exit_code;
}

// tessera train: a run file on this process, or on several ranks of this host.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/env.h"
#include "tessera/cli/commands.h"
#include "tessera/config/run_file.h"
#include "tessera/engine/timeline.h"
#include "tessera/launch/local_runner.h"
#include "tessera/train/run.h"

namespace tessera::cli {
namespace {

// The same command as one rank: this very program, without --nproc.
std::vector<std::string> rank_command(const train::RunOptions& options) {
  std::vector<std::string> command{"/proc/self/exe", "train", options.run_file};
  for (const std::string& override : options.overrides) command.insert(command.end(), {"--set", override});
  if (!options.resume.empty()) command.insert(command.end(), {"--resume", options.resume});
  if (!options.trace.empty()) command.insert(command.end(), {"--trace", options.trace});
  return command;
}

// Before any rank starts, so that a mistake is told once and not by every rank.
void check_configuration(const train::RunOptions& options, int nproc) {
  const config::RunFile run = config::load_run_file(options.run_file, options.overrides);
  config::DsConfigInput input{.data_parallel_size = std::max(1, nproc)};
  input.auto_values.leave_unknown = true;  // the number of steps is not known yet
  config::require_supported(config::resolve_ds_config(run, input));
  if (!options.trace.empty()) check_timeline_path(options.trace);
}

}  // namespace

void add_train_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<train::RunOptions>();
  auto nproc = std::make_shared<int>(1);
  CLI::App* command = app.add_subcommand("train", "Train a model as a run file says");
  command->add_option("RUN", options->run_file, "Run file, YAML or JSON (docs/run-file.md)")->required();
  command->add_option("--nproc", *nproc, "Number of ranks on this host")->capture_default_str();
  command->add_option("--set", options->overrides, "Override a key, e.g. training.max_steps=50 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--resume", options->resume, "'auto': the newest checkpoint of the output, if any; or a folder")
      ->type_name("auto|PATH");
  command
      ->add_option("--trace", options->trace, "Write what each rank did when to FILE, for chrome://tracing or Perfetto")
      ->type_name("FILE");
  command->callback([command, options, nproc, &exit_code] {
    const bool is_rank = env_text("RANK").has_value();
    if (command->count("--nproc") == 0 || (*nproc == 1 && !is_rank)) {
      exit_code = train::run_training(*options);
      return;
    }
    check_configuration(*options, *nproc);
    exit_code = launch::run_local(
        {.nproc = *nproc, .command = rank_command(*options), .output = launch::LocalRun::Output::kRankZeroPlain});
  });
}

}  // namespace tessera::cli

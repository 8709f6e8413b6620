// tessera train: a run file on this process, or on several ranks of this host.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/env.h"
#include "tessera/cli/commands.h"
#include "tessera/config/run_file.h"
#include "tessera/engine/timeline.h"
#include "tessera/launch/runners.h"
#include "tessera/train/run.h"

namespace tessera::cli {
namespace {

// The same command as one rank: without --nproc.
std::vector<std::string> rank_command(const train::RunOptions& options) {
  std::vector<std::string> command{options.program, "train", options.run_file};
  for (const std::string& override : options.overrides) command.insert(command.end(), {"--set", override});
  if (!options.resume.empty()) command.insert(command.end(), {"--resume", options.resume});
  if (!options.trace.empty()) command.insert(command.end(), {"--trace", options.trace});
  return command;
}

// Before any rank starts, so that a mistake is told once and not by every rank.
void check_before_start(const train::RunOptions& options, int nproc) {
  const config::RunFile run = config::load_run_file(options.run_file, options.overrides);
  train::check_run(run, std::max(1, nproc));
  if (options.resume.empty()) train::refuse_to_overwrite(run.output);
  if (!options.trace.empty()) engine::check_timeline_path(options.trace);
}

int start_ranks(const train::RunOptions& options, int nproc) {
  check_before_start(options, nproc);
  return launch::launch({.nproc = nproc,
                         .command = rank_command(options),
                         .program = "/proc/self/exe",
                         .output = launch::LaunchOptions::Output::kRankZeroPlain,
                         .extra_environment = {{"TESSERA_NPROC", std::to_string(nproc)}}});
}

}  // namespace

void add_train_command(CLI::App& app, const std::string& program, int& exit_code) {
  auto options = std::make_shared<train::RunOptions>();
  options->program = program;
  auto nproc = std::make_shared<int>(1);
  auto dry_run = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("train", "Train a model from a run file");
  command->add_option("RUN", options->run_file, "Run file, YAML or JSON (docs/run-file.md)")->required();
  command->add_option("--nproc", *nproc, "Number of ranks on this host")->capture_default_str();
  command->add_option("--set", options->overrides, "Override a key, e.g. training.max_steps=50 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--resume", options->resume,
                   "Checkpoint to resume from: a folder, or 'auto' for the newest in the output folder, if any")
      ->type_name("auto|PATH")
      ->check([](const std::string& given) { return given.empty() ? std::string("it is empty") : std::string(); });
  command
      ->add_option("--trace", options->trace, "Write a timeline of all ranks to FILE, for chrome://tracing or Perfetto")
      ->type_name("FILE");
  command->add_flag("--dry-run", *dry_run,
                    "Check everything, read the data and print what would be trained, without training");
  command->callback([command, options, nproc, dry_run, &exit_code] {
    if (*dry_run) {
      train::dry_run(config::load_run_file(options->run_file, options->overrides), std::max(1, *nproc));
      exit_code = 0;
      return;
    }
    const bool is_rank = env_text("RANK").has_value();
    const bool alone = command->count("--nproc") == 0 || (*nproc == 1 && !is_rank);
    exit_code = alone ? train::run_training(*options) : start_ranks(*options, *nproc);
  });
}

}  // namespace tessera::cli

// tessera train: a run file on this process, or on several ranks, of this host or of many.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/slurm_step.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/launch_flags.h"
#include "tessera/cli/rank_command.h"
#include "tessera/config/run_file.h"
#include "tessera/engine/timeline.h"
#include "tessera/launch/sbatch_script.h"
#include "tessera/train/quick_run.h"
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
config::RunFile checked_before_start(const train::RunOptions& options, int nproc) {
  const config::RunFile run = config::load_run_file(options.run_file, options.overrides);
  train::check_run(run, std::max(1, nproc));
  if (options.resume.empty()) train::refuse_to_overwrite(run.output);
  if (!options.trace.empty()) engine::check_timeline_path(options.trace);
  return run;
}

// By which the report says how the run is resumed (train/report.cpp).
void tell_ranks(launch::Launch& launch) {
  if (!launch.request.hostfile.empty() || launch.launcher == launch::kSlurmLauncher) return;
  launch.request.environment["TESSERA_NPROC"] = std::to_string(launch::rank_count(launch.hosts));
}

// A life after the first goes on from the newest checkpoint. What a step takes of the data stays what it was in the
// first, so on fewer ranks each accumulates more of it.
launch::Restarts restarts_of(launch::Restarts asked, const train::RunOptions& options, const config::RunFile& run,
                             int ranks) {
  const config::BatchSizes first = train::batch_of(run, ranks);
  asked.can_run = [global = first.global, parallel = run.parallel](int fewer) {
    return fewer % parallel.ranks_go_round_by() == 0 && global % (fewer / parallel.ranks_of_a_sample()) == 0;
  };
  asked.prepare = [options, output = run.output, first, ranks](launch::Launch& next) {
    train::RunOptions again = options;
    if (again.resume.empty() || train::holds_checkpoints(output)) again.resume = "auto";
    if (launch::rank_count(next.hosts) != ranks) {
      again.overrides.push_back(fmt::format("deepspeed.train_batch_size={}", first.global));
      again.overrides.push_back(fmt::format("deepspeed.train_micro_batch_size_per_gpu={}", first.micro));
      again.overrides.emplace_back("deepspeed.gradient_accumulation_steps=auto");
    }
    set_own_command(next.request, rank_command(again));
    tell_ranks(next);
  };
  return asked;
}

int start_ranks(const train::RunOptions& options, launch::LaunchRequest request, const launch::Restarts& restarts) {
  set_own_command(request, rank_command(options));
  launch::Launch decided = launch::decide(request);
  launch::check_restarts(restarts, decided);
  const int ranks = launch::rank_count(decided.hosts);
  const config::RunFile run = checked_before_start(options, ranks);
  tell_ranks(decided);
  if (restarts.at_most == 0) return launch::run(decided).code;
  return launch::run_with_restarts(decided, restarts_of(restarts, options, run, ranks));
}

std::string job_script(const train::RunOptions& options, const launch::LaunchRequest& request) {
  if (!options.resume.empty() && options.resume != "auto") {
    throw Error(ErrorKind::kUsage,
                {"--resume names a checkpoint, and a job that is queued again goes on from the newest",
                 "the command line, --print-sbatch", "leave it out: the script has --resume auto"});
  }
  const launch::Launch job = launch::decide_for_job(request);
  const config::RunFile run = config::load_run_file(options.run_file, options.overrides);
  train::check_run(run, launch::rank_count(job.hosts));
  train::RunOptions again = options;
  again.resume = "auto";
  launch::JobCommand command{.name = std::filesystem::path(options.run_file).stem().string(),
                             .words = rank_command(again),
                             .output = run.output};
  command.words[0] = std::filesystem::canonical("/proc/self/exe").string();
  return launch::sbatch_script(job, command);
}

// One of several ranks of a run that another program has started.
bool is_started_rank() {
  if (env_text("RANK")) return true;
  const auto step = slurm_step_of_environment();
  return step && step->tasks > 1;
}

// Once, before ranks of ours start or by the first of srun's.
bool tells_of_quick_run(bool prints_script) {
  const auto step = slurm_step_of_environment();
  return !prints_script && !env_text("RANK") && (!step || step->rank == 0);
}

// Each task of a step would start ranks that know nothing of the others'.
void refuse_ranks_of_a_task(const launch::LaunchRequest& request) {
  const auto step = slurm_step_of_environment();
  if (!step || step->tasks == 1 || request.no_ssh || env_text("RANK")) return;
  throw Error(
      ErrorKind::kUsage,
      {fmt::format("this is task {} of the {} that srun has started, and each is asked to start ranks of its own",
                   step->rank, step->tasks),
       "the command line", "leave out --nproc and the like: srun's tasks are the ranks"});
}

void warn_of_missing_srun() {
  const int64_t tasks = tasks_of_slurm_job_without_step();
  if (tasks < 2) return;
  log_warning("this process trains alone, in a job of Slurm's with {} tasks: start it with srun, or give --nproc",
              tasks);
}

constexpr const char* kQuickOptions[] = {"--model", "--task", "--data", "--eval", "--lora", "--output"};

void add_quick_options(CLI::App& command, train::QuickRun& quick) {
  command.add_option("--model", quick.model, "Without a run file: folder of the model to train");
  command.add_option("--task", quick.task, "Without a run file: classification, clm, sft, dpo, seq2seq or mlm");
  command.add_option("--data", quick.data, "Without a run file: file, pattern or folder to train on (repeatable)")
      ->allow_extra_args(false);
  command.add_option("--eval", quick.eval, "Without a run file: what to evaluate on (repeatable)")
      ->allow_extra_args(false);
  command
      .add_option("--lora", quick.lora, "Without a run file: train an adapter (LoRA) of this rank; 0: the model itself")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--output", quick.output, "Without a run file: folder for metrics, checkpoints and the result")
      ->capture_default_str();
}

void refuse_quick_options(const CLI::App& command) {
  for (const char* const option : kQuickOptions) {
    if (command.count(option) == 0) continue;
    throw Error(ErrorKind::kUsage, {std::string(option) + " is for runs without a run file, and there is one",
                                    "the command line", "write it into the run file, or change that with --set"});
  }
}

}  // namespace

void add_train_command(CLI::App& app, const std::string& program, int& exit_code) {
  auto options = std::make_shared<train::RunOptions>();
  options->program = program;
  auto flags = std::make_shared<LaunchFlags>();
  auto dry_run = std::make_shared<bool>(false);
  auto quick = std::make_shared<train::QuickRun>();
  CLI::App* command = app.add_subcommand("train", "Train a model from a run file, or from --model, --task and --data");
  command->add_option("RUN", options->run_file, "Run file, YAML or JSON (docs/run-file.md)");
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
  add_quick_options(*command, *quick);
  add_launch_flags(*command, *flags);
  command->callback([command, options, quick, flags, dry_run, &exit_code] {
    const bool is_rank = is_started_rank();
    if (options->run_file.empty()) {
      options->run_file = train::write_quick_run(*quick, /*prints=*/tells_of_quick_run(flags->print_sbatch));
    } else {
      refuse_quick_options(*command);
    }
    const launch::LaunchRequest request = flags->made(*command);
    if (flags->print_sbatch) {
      flags->check_print_sbatch();
      std::fputs(job_script(*options, request).c_str(), stdout);
      return;
    }
    if (*dry_run) {
      const std::vector<launch::HostSlots> hosts = launch::decide(request).hosts;
      size_t most = 1;
      for (const launch::HostSlots& host : hosts) most = std::max(most, host.slots.size());
      train::dry_run(config::load_run_file(options->run_file, options->overrides), launch::rank_count(hosts),
                     static_cast<int64_t>(most));
      exit_code = 0;
      return;
    }
    const bool starts = !flags->runs_here(*command) || (flags->restarts.at_most > 0 && !is_rank);
    if (!starts && flags->restarts.at_most > 0) {
      throw Error(ErrorKind::kUsage,
                  {"--max-restarts is for the command that starts the ranks, and this is one of them",
                   "the environment", "give it to the launcher that started this rank"});
    }
    if (starts) refuse_ranks_of_a_task(request);
    if (!starts && !is_rank) warn_of_missing_srun();
    exit_code = starts ? start_ranks(*options, request, flags->restarts) : train::run_training(*options);
  });
}

}  // namespace tessera::cli

#include "tessera/launch/sbatch_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <filesystem>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/shell.h"
#include "tessera/base/signals.h"
#include "tessera/launch/remote_commands.h"

namespace tessera::launch {
namespace {

constexpr int kSecondsToSave = 120;

// %j is the job's number, one of its own for each job of an array, and the same after it was queued again.
constexpr const char* kHead = R"(#!/bin/bash
#SBATCH --job-name={}
#SBATCH --nodes={}
#SBATCH --ntasks-per-node={}
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@{}
)";

constexpr const char* kSetup = R"(
# Also: --partition, --gres, --cpus-per-task, and --time, by which Slurm knows when to tell the ranks to save.
# What the programs need of modules, and the folder that scripts/bundle made:
# module load mpich/3.4.1-gcc9.3
# . tessera-0.1.0/env.sh
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

# By this the ranks know each other: a file that only its owner can read.
if [ -z "${TESSERA_SECRET_FILE:-}" ]; then
  export TESSERA_SECRET_FILE=$PWD/.tessera-secret-$SLURM_JOB_ID
  trap 'rm -f "$TESSERA_SECRET_FILE"' EXIT
  (umask 077; od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$TESSERA_SECRET_FILE")
fi
)";

constexpr const char* kOutputOfArray = R"(
# Each job of an array has an output of its own.
more=()
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then more=(--set "output="%OUTPUT%"-$SLURM_ARRAY_TASK_ID"); fi
)";

constexpr const char* kRun = R"(
# When one task has ended, the others have 60 s.
srun --wait=60 {}{} &
step=$!

# Slurm tells this script that its time is nearly up; the ranks save, and leave with code {}.
told=
trap 'told=1; kill -USR1 "$step" 2>/dev/null' USR1
wait "$step"
code=$?
while [ -n "$told" ]; do
  told=
  wait "$step"
  code=$?
done
case $code in
  {}|{}) scontrol requeue "$SLURM_JOB_ID" ;;  # the second: told before there was anything to save
esac
exit "$code"
)";

std::string plain_name(const std::string& name) {
  std::string plain;
  for (const char c : name) plain += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' ? c : '-';
  return plain.empty() ? "tessera" : plain;
}

// "--partition=gpu --gres gpu:4" as two lines.
std::string given_lines(const LaunchRequest& request) {
  std::string lines;
  for (const std::string& word : shell_words(request.launcher_args, "--launcher_args")) {
    if (word.find('\n') != std::string::npos || (lines.empty() && !word.starts_with('-'))) {
      throw Error(ErrorKind::kUsage, {fmt::format("'{}' is no option of sbatch", word), "--launcher_args",
                                      "use options of sbatch, such as --partition=gpu"});
    }
    lines += word.starts_with('-') ? "\n#SBATCH " + word : " " + word;
  }
  return lines.empty() ? "" : lines.substr(1) + "\n";
}

std::string nodelist_line(const Launch& launch) {
  if (launch.request.hostfile.empty()) return "";
  std::vector<std::string> names;
  for (const HostSlots& host : launch.hosts) names.push_back(host.host);
  return fmt::format("#SBATCH --nodelist={}\n", fmt::join(names, ","));
}

std::string array_lines(const std::string& output) {
  constexpr std::string_view kPlace = "%OUTPUT%";
  std::string lines = kOutputOfArray;
  return lines.replace(lines.find(kPlace), kPlace.size(), shell_quote(output));
}

}  // namespace

Launch decide_for_job(const LaunchRequest& request) {
  const bool other = !request.launcher.empty() && request.launcher != kSlurmLauncher;
  if (other || request.no_ssh) {
    throw Error(ErrorKind::kUsage, {fmt::format("--print-sbatch is for Slurm, and {} is for something else",
                                                request.no_ssh ? "--no_ssh" : "--launcher " + request.launcher),
                                    "the command line", "leave it out"});
  }
  LaunchRequest asked = request;
  asked.launcher = kSlurmLauncher;
  asked.to_submit = true;
  const Launch launch = decide(asked);
  check_remote_slots(kSlurmLauncher, {.request = launch.request, .pool = launch.pool, .hosts = launch.hosts});
  return launch;
}

std::string sbatch_script(const Launch& launch, const JobCommand& command) {
  std::string script = fmt::format(fmt::runtime(kHead), plain_name(command.name), launch.hosts.size(),
                                   launch.hosts.front().slots.size(), kSecondsToSave);
  script += nodelist_line(launch) + given_lines(launch.request) + kSetup;
  if (!command.output.empty()) script += array_lines(command.output);
  return script + fmt::format(fmt::runtime(kRun), shell_command(command.words),
                              command.output.empty() ? "" : " \"${more[@]}\"", kRequeueCode, kRequeueCode,
                              128 + kRequeueSignal);
}

JobCommand job_command(const LaunchRequest& request) {
  const RankProgram& program = request.program;
  JobCommand command{.name = std::filesystem::path(program.name).stem().string(), .words = slurm_task_words(program)};
  command.words.push_back(program.name);
  command.words.insert(command.words.end(), program.arguments.begin(), program.arguments.end());
  return command;
}

}  // namespace tessera::launch

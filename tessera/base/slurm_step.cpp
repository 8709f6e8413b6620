#include "tessera/base/slurm_step.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/slurm_lists.h"

namespace tessera {
namespace {

constexpr int64_t kMostTasks = 1'000'000;
constexpr int64_t kHighestPort = 65'535;

int64_t within(const char* name, int64_t value, int64_t lowest, int64_t highest) {
  if (value >= lowest && value <= highest) return value;
  throw Error(ErrorKind::kUsage,
              {fmt::format("{} is {}", name, value), "the environment",
               fmt::format("use a number from {} to {}, or start the ranks with srun", lowest, highest)});
}

int64_t required(const char* name, int64_t lowest, int64_t highest) {
  if (const auto value = env_int(name)) return within(name, *value, lowest, highest);
  throw Error(ErrorKind::kUsage, {fmt::format("SLURM_STEP_ID is set but {} is not", name), "the environment",
                                  "start the ranks with srun, or unset SLURM_STEP_ID"});
}

int64_t tasks_of_step() {
  const char* const name = env_text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  return required(name, 1, kMostTasks);
}

int local_tasks_of(const SlurmStep& step) {
  const char* const name = "SLURM_STEP_TASKS_PER_NODE";
  const auto text = env_text(name);
  if (!text && step.nodes == 1) return step.tasks;
  if (!text) {
    throw Error(ErrorKind::kUsage, {fmt::format("the step is on {} hosts but {} is not set", step.nodes, name),
                                    "the environment", "start the ranks with srun"});
  }
  const std::vector<int> counts = slurm_counts(*text, name);
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (static_cast<size_t>(step.node) < counts.size() && all == step.tasks &&
      step.local_rank < counts[static_cast<size_t>(step.node)]) {
    return counts[static_cast<size_t>(step.node)];
  }
  throw Error(ErrorKind::kUsage,
              {fmt::format("{} is '{}', which does not fit SLURM_NODEID={}, SLURM_LOCALID={} and {} tasks in all", name,
                           *text, step.node, step.local_rank, step.tasks),
               "the environment", "start the ranks with srun, and leave Slurm's variables as they are"});
}

std::string first_host() {
  for (const char* const name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto list = env_text(name)) return slurm_hosts(*list, name).front();
  }
  throw Error(ErrorKind::kUsage, {"neither MASTER_ADDR nor SLURM_STEP_NODELIST is set, so the ranks cannot find each "
                                  "other",
                                  "the environment", "export MASTER_ADDR=<host of rank 0>"});
}

}  // namespace

int slurm_port(uint64_t job, uint64_t step) {
  constexpr uint64_t kLowest = 10'000;
  constexpr uint64_t kPorts = 22'000;
  constexpr uint64_t kStepsBetweenJobs = 101;  // prime to kPorts: jobs that follow one another have ports of their own
  return static_cast<int>(kLowest + (job % kPorts * kStepsBetweenJobs + step % kPorts) % kPorts);
}

bool is_in_slurm_step() {
  const bool is_of_mpirun = env_text("OMPI_COMM_WORLD_RANK") || env_text("MPI_LOCALRANKID");
  return env_text("SLURM_STEP_ID") && !is_of_mpirun;
}

std::optional<SlurmStep> slurm_step_of_environment() {
  if (!is_in_slurm_step()) return std::nullopt;
  SlurmStep step{.tasks = static_cast<int>(tasks_of_step())};
  step.rank = static_cast<int>(required("SLURM_PROCID", 0, step.tasks - 1));
  if (step.tasks == 1) return step;
  step.local_rank = static_cast<int>(required("SLURM_LOCALID", 0, step.tasks - 1));
  step.nodes = static_cast<int>(within("SLURM_STEP_NUM_NODES", env_int("SLURM_STEP_NUM_NODES").value_or(1), 1,
                                       static_cast<int64_t>(kMostSlurmHosts)));
  step.node = static_cast<int>(within("SLURM_NODEID", env_int("SLURM_NODEID").value_or(0), 0, step.nodes - 1));
  step.local_tasks = local_tasks_of(step);
  step.master_addr = env_text("MASTER_ADDR").value_or("");
  if (step.master_addr.empty()) step.master_addr = first_host();
  const int port = slurm_port(static_cast<uint64_t>(env_int("SLURM_JOB_ID").value_or(0)),
                              static_cast<uint64_t>(env_int("SLURM_STEP_ID").value_or(0)));
  step.master_port = static_cast<int>(within("MASTER_PORT", env_int("MASTER_PORT").value_or(port), 1, kHighestPort));
  return step;
}

int64_t tasks_of_slurm_job_without_step() {
  if (!env_text("SLURM_JOB_ID") || env_text("SLURM_STEP_ID")) return 0;
  return env_int("SLURM_NTASKS").value_or(1);
}

}  // namespace tessera

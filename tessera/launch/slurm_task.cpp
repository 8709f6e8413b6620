#include "tessera/launch/slurm_task.h"

#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/launch/free_port.h"
#include "tessera/launch/program_path.h"

namespace tessera::launch {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> inherited_environment() {
  std::vector<std::string> inherited;
  for (char** entry = environ; *entry != nullptr; ++entry) inherited.emplace_back(*entry);
  return inherited;
}

}  // namespace

Environment variables_of_task(const SlurmStep& step) {
  const bool alone = step.tasks == 1;
  return rank_variables({.rank = step.rank,
                         .world_size = step.tasks,
                         .local_rank = step.local_rank,
                         .local_world_size = step.local_tasks,
                         .node_rank = step.node,
                         .nodes = step.nodes,
                         .master_addr = alone ? "127.0.0.1" : step.master_addr,
                         .master_port = alone ? pick_free_port().number : step.master_port});
}

void become_slurm_task(const RankProgram& program) {
  const auto step = slurm_step_of_environment();
  if (!step) {
    throw Error(ErrorKind::kUsage, {"--slurm-task is for tasks that srun starts, and this is none", "the environment",
                                    "use tessera launch --launcher slurm"});
  }
  require_program(program);
  std::vector<std::string> words = command_of(program, step->local_rank);
  std::vector<std::string> variables = merge_environment(inherited_environment(), variables_of_task(*step));
  const std::string path = program_path(words.front());
  execve(path.c_str(), pointers_to(words).data(), pointers_to(variables).data());
  throw Error(ErrorKind::kUsage, {"cannot execute it: " + errno_text(errno), path, "make it executable"});
}

}  // namespace tessera::launch

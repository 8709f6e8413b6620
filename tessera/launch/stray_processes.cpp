#include "tessera/launch/stray_processes.h"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tessera/base/deadline.h"

namespace tessera::launch {
namespace {

// Empty on a kernel built without CONFIG_PROC_CHILDREN: then strays are left to themselves.
std::set<pid_t> own_children() {
  std::set<pid_t> children;
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::ifstream file(thread.path() / "children");
    for (pid_t pid = 0; file >> pid;) children.insert(pid);
  }
  return children;
}

}  // namespace

StrayProcesses::StrayProcesses() : excepted_(own_children()) {
  prctl(PR_GET_CHILD_SUBREAPER, &former_subreaper_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

StrayProcesses::~StrayProcesses() { prctl(PR_SET_CHILD_SUBREAPER, former_subreaper_); }

std::set<pid_t> StrayProcesses::strays() const {
  std::set<pid_t> found = own_children();
  for (const pid_t pid : excepted_) found.erase(pid);
  return found;
}

void StrayProcesses::reap() {
  for (const pid_t pid : strays()) waitpid(pid, nullptr, WNOHANG);
}

void StrayProcesses::kill_all(std::chrono::milliseconds allowed) {
  const Deadline deadline(allowed, "processes that the ranks left behind");
  // Each that goes may hand us its own children.
  for (auto left = strays(); !left.empty() && !deadline.expired(); left = strays()) {
    for (const pid_t pid : left) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, WNOHANG);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace tessera::launch

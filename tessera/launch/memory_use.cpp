#include "tessera/launch/memory_use.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace tessera::launch {
namespace {

// The number after `name` in a file of "name number …" lines; 0 when it is not there.
uint64_t number_after(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    uint64_t number = 0;
    if (word == name && file >> number) return number;
    file.clear();
    file.ignore(1 << 16, '\n');
  }
  return 0;
}

// Our control group's folder, version 2 ("0::/user.slice/…"); the root where the line is missing.
std::filesystem::path control_group() {
  const std::filesystem::path root = "/sys/fs/cgroup";
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return root / line.substr(4);
  }
  return root;
}

}  // namespace

MemoryUse memory_use(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  MemoryUse most{.resident_bytes = 1024 * number_after(folder + "/status", "VmRSS:"),
                 .peak_resident_bytes = 1024 * number_after(folder + "/status", "VmHWM:")};
  std::ifstream children(folder + "/task/" + std::to_string(pid) + "/children");
  for (pid_t child = 0; children >> child;) {
    const MemoryUse below = memory_use(child);
    if (below.resident_bytes > most.resident_bytes) most = below;
  }
  return most;
}

uint64_t memory_limit_bytes() {
  uint64_t limit = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const std::filesystem::path root = "/sys/fs/cgroup";
  for (auto group = control_group(); group.string().size() >= root.string().size(); group = group.parent_path()) {
    uint64_t group_limit = 0;  // the file says "max" where there is none
    if (std::ifstream(group / "memory.max") >> group_limit && group_limit > 0) limit = std::min(limit, group_limit);
  }
  return limit;
}

uint64_t out_of_memory_kills() { return number_after("/proc/vmstat", "oom_kill"); }

}  // namespace tessera::launch

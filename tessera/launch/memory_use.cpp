#include "tessera/launch/memory_use.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "tessera/base/host_memory.h"

namespace tessera::launch {

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

uint64_t out_of_memory_kills() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    const std::filesystem::path events = "/sys/fs/cgroup" + line.substr(3) + "/memory.events";
    if (std::error_code none; std::filesystem::exists(events, none)) return number_after(events, "oom_kill");
  }
  return number_after("/proc/vmstat", "oom_kill");
}

}  // namespace tessera::launch

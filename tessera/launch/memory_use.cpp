#include "tessera/launch/memory_use.h"

#include <fstream>
#include <string>

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

uint64_t out_of_memory_kills() { return number_after("/proc/vmstat", "oom_kill"); }

}  // namespace tessera::launch

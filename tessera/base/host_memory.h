// How much memory this process has used at most, and how much this host, our control groups and the limits of this
// process still allow: /proc/meminfo, memory.max (control groups, version 2) or memory.limit_in_bytes (version 1) of
// our group and of those above it, and getrlimit. In bytes; 0 where the machine does not report it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tessera {

struct HostMemory {
  uint64_t limit = 0;  // of the machine, or the smallest limit of our control groups
  uint64_t available =
      0;  // what may be taken without pushing others out: page cache counts as available, swap does not
  uint64_t free_swap = 0;
};

// Where the kernel reports it; tests have files of their own.
struct HostMemoryFiles {
  std::filesystem::path meminfo = "/proc/meminfo";
  std::filesystem::path groups_of_process = "/proc/self/cgroup";
  std::filesystem::path groups = "/sys/fs/cgroup";
};

HostMemory host_memory(const HostMemoryFiles& files = {});

// What RLIMIT_DATA and RLIMIT_AS leave this process, the smaller of the two; nothing where neither is set.
std::optional<uint64_t> left_of_process_limits();

// From now on this process is refused more than `bytes` of private memory (RLIMIT_DATA: heap, buffers and the stacks of
// threads, but not mapped files). A lower limit that is already set stays. ErrorKind::kUsage where it uses more now.
void limit_process_memory(uint64_t bytes);

// The number after `name` in a file of "name number …" lines, as the kernel writes them (/proc/self/status: "VmRSS:",
// "VmHWM:", in KiB); 0 when it is not there.
uint64_t number_after(const std::filesystem::path& file, const std::string& name);

// The largest resident size of this process so far; 0 where the system does not tell.
int64_t peak_memory_bytes();

}  // namespace tessera

#include "tessera/base/host_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A file that holds one number; nothing where it says "max" or is not there.
std::optional<uint64_t> number_in(const fs::path& path) {
  uint64_t number = 0;
  if (std::ifstream(path) >> number) return number;
  return std::nullopt;
}

// What the two versions of control groups call the same things.
struct GroupNames {
  const char* limit;
  const char* used;
  const char* inactive_file;
  const char* active_file;
};
constexpr GroupNames kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                               "total_active_file"};
constexpr GroupNames kVersion2{"memory.max", "memory.current", "inactive_file", "active_file"};

// The limit of one group, and what it leaves: its files' pages in the cache go when memory is asked for.
void apply_group(const fs::path& group, const GroupNames& names, HostMemory& memory) {
  const std::optional<uint64_t> limit = number_in(group / names.limit);
  if (!limit || *limit == 0) return;
  const uint64_t cached =
      number_after(group / "memory.stat", names.inactive_file) + number_after(group / "memory.stat", names.active_file);
  const uint64_t used = number_in(group / names.used).value_or(0);
  const uint64_t held = used > cached ? used - cached : 0;
  memory.limit = std::min(memory.limit, *limit);
  memory.available = std::min(memory.available, *limit > held ? *limit - held : 0);
}

// `path` is as /proc/self/cgroup has it. In a container it may be a path of the host; the parents that exist count.
void apply_groups(const fs::path& root, const std::string& path, const GroupNames& names, HostMemory& memory) {
  const fs::path below = fs::path(path).relative_path();
  for (fs::path group = root / below; group.string().size() >= root.string().size(); group = group.parent_path()) {
    apply_group(group, names, memory);
    if (group == root) return;
  }
}

}  // namespace

HostMemory host_memory(const HostMemoryFiles& files) {
  HostMemory memory{.limit = number_after(files.meminfo, "MemTotal:") * 1024,
                    .available = number_after(files.meminfo, "MemAvailable:") * 1024,
                    .free_swap = number_after(files.meminfo, "SwapFree:") * 1024};
  std::ifstream groups(files.groups_of_process);
  for (std::string line; std::getline(groups, line);) {  // "0::/user.slice" or "4:memory:/user.slice"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      apply_groups(files.groups, path, kVersion2, memory);
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      apply_groups(files.groups / "memory", path, kVersion1, memory);
    }
  }
  return memory;
}

std::optional<uint64_t> left_of_process_limits() {
  std::optional<uint64_t> left;
  const auto apply = [&left](auto resource, const char* used_name) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    const uint64_t used = number_after("/proc/self/status", used_name) * 1024;
    const uint64_t rest = limit.rlim_cur > used ? limit.rlim_cur - used : 0;
    left = std::min(left.value_or(rest), rest);
  };
  apply(RLIMIT_DATA, "VmData:");
  apply(RLIMIT_AS, "VmSize:");
  return left;
}

void limit_process_memory(uint64_t bytes) {
  const uint64_t taken = number_after("/proc/self/status", "VmData:") * 1024;
  if (taken >= bytes) {
    throw Error(ErrorKind::kUsage, {fmt::format("a limit of {} is less than the {} that the program already uses",
                                                format_bytes(bytes), format_bytes(taken)),
                                    "the process memory limit", "raise it"});
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_cur, bytes);
  setrlimit(RLIMIT_DATA, &limit);
}

uint64_t number_after(const fs::path& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    uint64_t number = 0;
    if (words >> word >> number && word == name) return number;
  }
  return 0;
}

int64_t peak_memory_bytes() { return static_cast<int64_t>(number_after("/proc/self/status", "VmHWM:") * 1024); }

}  // namespace tessera

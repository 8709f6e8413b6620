#include "tessera/base/host_facts.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

constexpr const char* kProcessors = "processors";
constexpr const char* kMemory = "memory";
constexpr const char* kLimits = "limits";

constexpr uint64_t kMiB = 1 << 20;
// DeepSpeed's own report warns below this.
constexpr uint64_t kLeastSharedMemory = 512 * kMiB;
// What Linux gives every process from 5.16 on.
constexpr uint64_t kUsualLockedMemory = 8 * kMiB;
// Of a rank: files of its own, and 8 connections to each other rank (comm/rendezvous.cpp); some 500 ranks.
constexpr uint64_t kLeastOpenFiles = 4096;
// LibTorch, OpenMP and data loaders start a thread a core each, and more; threads count as processes here.
constexpr uint64_t kLeastProcesses = 1024;

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string model_of_processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown";
}

int allowed_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

std::vector<Fact> processor_facts(const HostFiles& files) {
  const int cores = allowed_cores();
  std::vector<Fact> facts = {{.topic = kProcessors, .name = "model", .value = model_of_processor()},
                             fact_of_count(kProcessors, "of this machine", sysconf(_SC_NPROCESSORS_ONLN)),
                             fact_of_count(kProcessors, "of this process", static_cast<uint64_t>(cores))};
  const auto quota = processors_of_quota(first_line(files.processor_quota));
  if (quota && *quota < cores) {
    Fact fact{.topic = kProcessors, .name = "of the control group", .value = fmt::format("{:.3g}", *quota)};
    fact.warning = fmt::format(
        "the control group allows the time of {:.3g} processors, and libraries start a thread for each of {}: set "
        "OMP_NUM_THREADS={}",
        *quota, cores, std::max(1, static_cast<int>(std::floor(*quota))));
    facts.push_back(fact);
  }
  facts.push_back(
      {.topic = kProcessors, .name = "OMP_NUM_THREADS", .value = env_text("OMP_NUM_THREADS").value_or("not set")});
  return facts;
}

std::vector<Fact> memory_facts(const HostFiles& files) {
  const HostMemory memory = host_memory(files.memory);
  const uint64_t of_machine = number_after(files.memory.meminfo, "MemTotal:") * 1024;
  std::vector<Fact> facts = {fact_of_bytes(kMemory, "of this machine", of_machine)};
  if (memory.limit < of_machine) {
    facts.push_back(fact_of_bytes(kMemory, "limit of the control group", memory.limit));
  }
  facts.push_back(fact_of_bytes(kMemory, "available", memory.available));
  facts.push_back(fact_of_bytes(kMemory, "free swap", memory.free_swap));
  if (const auto left = left_of_process_limits()) {
    Fact fact = fact_of_bytes(kMemory, "left to this process", *left);
    if (*left < memory.available) {
      fact.warning = fmt::format("ulimit -v or -d allows this process only {} of the {} that are available", fact.value,
                                 format_bytes(memory.available));
    }
    facts.push_back(fact);
  }
  const std::string mode = first_line(files.overcommit);
  if (!mode.empty()) facts.push_back(overcommit_fact(std::atoi(mode.c_str())));
  return facts;
}

std::vector<Fact> shared_memory_facts_of(const std::filesystem::path& folder) {
  struct statvfs found {};
  if (statvfs(folder.c_str(), &found) != 0) {
    Fact fact{.topic = folder.string(), .name = "size", .value = errno_text(errno)};
    fact.warning = "PyTorch's data loaders and NCCL need it: mount a tmpfs there";
    return {fact};
  }
  return shared_memory_facts(folder.string(), found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize);
}

// An unlimited one has no number.
Fact limit_fact(const std::string& name, rlim_t limit, bool is_bytes) {
  if (limit == RLIM_INFINITY) return {.topic = kLimits, .name = name, .value = "unlimited"};
  return is_bytes ? fact_of_bytes(kLimits, name, limit) : fact_of_count(kLimits, name, limit);
}

bool has_entries(const std::filesystem::path& folder) {
  std::error_code none;
  return std::filesystem::directory_iterator(folder, none) != std::filesystem::directory_iterator();
}

rlimit limit_of(__rlimit_resource resource) {
  rlimit limit{};
  getrlimit(resource, &limit);
  return limit;
}

std::vector<Fact> limit_facts(const HostFiles& files) {
  Fact file_size = limit_fact("file size (ulimit -f)", limit_of(RLIMIT_FSIZE).rlim_cur, /*is_bytes=*/true);
  if (file_size.number) {
    file_size.warning = "files and memory that ranks share cannot be larger: raise it (ulimit -f unlimited)";
  }
  return {open_files_fact(limit_of(RLIMIT_NOFILE)), processes_fact(limit_of(RLIMIT_NPROC), geteuid() == 0),
          locked_memory_fact(limit_of(RLIMIT_MEMLOCK), has_entries(files.infiniband)),
          limit_fact("core files (ulimit -c)", limit_of(RLIMIT_CORE).rlim_cur, /*is_bytes=*/true), file_size};
}

}  // namespace

std::vector<Fact> host_facts(const HostFiles& files) {
  return joined(
      {processor_facts(files), memory_facts(files), shared_memory_facts_of(files.shared_memory), limit_facts(files)});
}

std::vector<Fact> shared_memory_facts(const std::string& folder, uint64_t bytes, uint64_t free_bytes) {
  Fact size = fact_of_bytes(folder, "size", bytes);
  Fact free = fact_of_bytes(folder, "free", free_bytes);
  const std::string those = "PyTorch's data loaders and NCCL, which keep buffers there, may fail";
  if (bytes < kLeastSharedMemory) {
    size.warning =
        fmt::format("only {}: {}; start the container with --shm-size=8g, or remount it larger", size.value, those);
  } else if (free_bytes < kLeastSharedMemory) {
    free.warning = fmt::format("only {} of {} are free: {}; see what is left there of processes that were killed",
                               free.value, size.value, those);
  }
  return {size, free};
}

std::optional<double> processors_of_quota(const std::string& cpu_max) {
  std::istringstream text(cpu_max);
  double quota = 0, period = 0;
  if (!(text >> quota >> period) || period <= 0) return std::nullopt;
  return quota / period;
}

Fact open_files_fact(const rlimit& limit) {
  Fact fact = limit_fact("open files (ulimit -n)", limit.rlim_cur, /*is_bytes=*/false);
  if (limit.rlim_max != limit.rlim_cur) {
    fact.value += fmt::format(", may be raised to {}", limit_fact("", limit.rlim_max, /*is_bytes=*/false).value);
  }
  // Tessera raises the soft limit itself.
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < kLeastOpenFiles) {
    fact.warning = fmt::format(
        "a run keeps 8 files open for each rank: raise the hard limit to {} or more "
        "(ulimit -Hn, LimitNOFILE, docker run --ulimit nofile=)",
        format_count(kLeastOpenFiles));
  }
  return fact;
}

Fact processes_fact(const rlimit& limit, bool is_root) {
  Fact fact = limit_fact("processes and threads (ulimit -u)", limit.rlim_cur, /*is_bytes=*/false);
  if (fact.number && *fact.number < kLeastProcesses && !is_root) {
    fact.warning = "all threads of this user count, and LibTorch starts several for each core: raise it (ulimit -u)";
  }
  return fact;
}

Fact locked_memory_fact(const rlimit& limit, bool has_infiniband) {
  Fact fact = limit_fact("locked memory (ulimit -l)", limit.rlim_cur, /*is_bytes=*/true);
  if (!fact.number) return fact;
  if (has_infiniband) {
    fact.warning =
        "this host has InfiniBand, whose buffers are locked memory: MPI and NCCL fail or fall back to TCP; "
        "raise it (ulimit -l unlimited)";
  } else if (*fact.number < kUsualLockedMemory) {
    fact.warning = fmt::format(
        "less than the usual {}: Linux before 5.12 counts io_uring's queues against it, and "
        "memory that is pinned for devices or RDMA is refused; raise it (ulimit -l unlimited)",
        format_bytes(kUsualLockedMemory));
  }
  return fact;
}

Fact overcommit_fact(int mode) {
  constexpr const char* kModes[] = {"0: as seems possible", "1: always", "2: never"};
  Fact fact{.topic = kMemory, .name = "overcommit", .value = std::to_string(mode)};
  if (mode >= 0 && mode <= 2) fact.value = kModes[mode];
  if (mode == 2) {
    fact.warning =
        "the kernel counts memory when it is asked for, not when it is used, and refuses what exceeds "
        "CommitLimit in /proc/meminfo while much is free: sysctl vm.overcommit_memory=0";
  }
  return fact;
}

}  // namespace tessera

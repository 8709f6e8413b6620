// What this host gives a process: processors, memory, /dev/shm and limits, with a warning where a run will suffer from
// it.
//
//   for (const Fact& fact : host_facts()) …
//
// Where a warning depends on a quantity, a function of that quantity makes the fact, so that every machine can be tried
// on one. Reads /proc, /sys and getrlimit; changes nothing.
#pragma once

#include <sys/resource.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/fact.h"
#include "tessera/base/host_memory.h"

namespace tessera {

// Where the kernel reports it; tests have files of their own.
struct HostFiles {
  HostMemoryFiles memory = {};
  std::filesystem::path shared_memory = "/dev/shm";
  std::filesystem::path overcommit = "/proc/sys/vm/overcommit_memory";
  std::filesystem::path processor_quota = "/sys/fs/cgroup/cpu.max";
  std::filesystem::path infiniband = "/sys/class/infiniband";
};

// All of them, topic by topic.
std::vector<Fact> host_facts(const HostFiles& files = {});

// The folder's file system, in bytes; Tessera's own segments lie elsewhere (memfd), but PyTorch's data loaders and NCCL
// put theirs here. Docker gives a container 64 MB.
std::vector<Fact> shared_memory_facts(const std::string& folder, uint64_t bytes, uint64_t free_bytes);

// By how many of `cores` a control group's cpu.max ("200000 100000": quota and period in µs; "max 100000": all) lets
// the process run on; nothing where it sets no limit.
std::optional<double> processors_of_quota(const std::string& cpu_max);

// The limits that bound a run, as getrlimit has them.
Fact open_files_fact(const rlimit& limit);
Fact processes_fact(const rlimit& limit, bool is_root);
Fact locked_memory_fact(const rlimit& limit, bool has_infiniband);

// Of /proc/sys/vm/overcommit_memory: 0, 1 or 2.
Fact overcommit_fact(int mode);

}  // namespace tessera

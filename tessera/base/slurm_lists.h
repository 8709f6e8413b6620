// The short forms in which Slurm's variables list hosts and counts.
//
//   SLURM_JOB_NODELIST        gpu[01-03,7],login1     gpu01 gpu02 gpu03 gpu7 login1
//   SLURM_TASKS_PER_NODE      2(x3),1                 2 2 2 1
//
// Bounded: what would be more than kMostSlurmHosts, or names of 1 MiB together, is an error before it is made.
// ErrorKind::kUsage, with the variable.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr size_t kMostSlurmHosts = 65'536;

// A name may have several brackets, "rack[1-2]n[0-7]"; numbers keep their leading zeros. `variable`: what errors call
// the list.
std::vector<std::string> slurm_hosts(std::string_view list, const std::string& variable);

// Each is at least 1.
std::vector<int> slurm_counts(std::string_view list, const std::string& variable);

}  // namespace tessera

// Whether every host has the same files: first their sizes are compared, then sums (XXH3-64) of what is in them. One
// rank of each host reads. Up to kReadWhole a file is read as a whole; of a larger one, kSamples blocks from its first
// to its last byte, so that terabytes take seconds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/check/finding.h"
#include "tessera/check/host_card.h"
#include "tessera/comm/group.h"

namespace tessera::check {

inline constexpr uint64_t kReadWhole = 256U << 20;  // bytes
inline constexpr uint64_t kSamples = 64;

struct CheckedFile {
  std::string path;    // as it was given, or below a folder that was
  uint64_t bytes = 0;  // as rank 0 has it
  bool same = false;
};

struct FileState {
  enum class Kind { kFile, kMissing, kUnreadable };
  Kind kind = Kind::kMissing;
  uint64_t bytes = 0;
  uint64_t sum = 0;
  bool operator==(const FileState&) const = default;
};

FileState size_of_file(const std::string& path);

// Reads it. kUnreadable where that fails.
FileState sum_of_file(const std::string& path);

// Every file below the folders, sorted, and the paths that are none, as they are.
std::vector<std::string> files_below(const std::vector<std::string>& paths);

// Collective; the same result on every rank. Each rank was given the same `paths`; what stands below a folder is what
// any host has there.
std::vector<CheckedFile> compare_files(comm::Group& world, const std::vector<HostCard>& cards,
                                       const std::vector<std::string>& paths, Findings& found);

}  // namespace tessera::check

// The hosts of a run and their slots, as a hostfile lists them:
//
//   # comment
//   worker-0 slots=4        what follows the number is ignored
//   10.0.0.7 slots=2
//
// A slot is a place for one rank: a device's index, or just a number on hosts without devices. The order of hosts is
// that of the file, and ranks are numbered in it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::launch {

// What `deepspeed` reads where no hostfile is named.
inline constexpr const char* kDefaultHostfile = "/job/hostfile";

struct HostSlots {
  std::string host;
  std::vector<int> slots;

  bool operator==(const HostSlots&) const = default;
};

// Slots 0 to N-1 of each host. `name`: what errors call the file. ErrorKind::kUsage, with the line, for a line of
// another form, a host that comes twice, one without slots, and where no line names a host.
std::vector<HostSlots> parse_hostfile(const std::vector<std::string>& lines, const std::string& name);

// ErrorKind::kUsage also where there is no such file.
std::vector<HostSlots> read_hostfile(const std::filesystem::path& path);

// Slots 0 to `count` - 1.
std::vector<int> first_slots(int count);

int rank_count(const std::vector<HostSlots>& hosts);

}  // namespace tessera::launch

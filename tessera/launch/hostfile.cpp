#include "tessera/launch/hostfile.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/trimmed.h"

namespace tessera::launch {
namespace {

constexpr const char* kBlanks = " \t\r\n\v\f";
constexpr const char* kAdvice = "write one machine per line, like 'worker-0 slots=4'";
constexpr size_t kMostDigits = 5;  // no list of slots that takes all memory

struct Line {
  std::string host;
  int slots;
};

std::optional<Line> parse_line(std::string_view line) {
  constexpr std::string_view kSlots = "slots=";
  const size_t host_end = line.find_first_of(kBlanks);
  if (host_end == std::string_view::npos) return std::nullopt;
  std::string_view rest = trimmed(line.substr(host_end));
  if (!rest.starts_with(kSlots)) return std::nullopt;
  rest.remove_prefix(kSlots.size());
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0 || digits > kMostDigits) return std::nullopt;
  if (digits < rest.size() && rest[digits] != '#' && trimmed(rest.substr(digits, 1)) != "") return std::nullopt;
  int slots = 0;
  std::from_chars(rest.data(), rest.data() + digits, slots);
  return Line{std::string(line.substr(0, host_end)), slots};
}

}  // namespace

std::vector<HostSlots> parse_hostfile(const std::vector<std::string>& lines, const std::string& name) {
  std::vector<HostSlots> hosts;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = trimmed(lines[i]);
    if (line.empty() || line.starts_with('#')) continue;
    const auto refuse = [&](const std::string& what, const char* fix) {
      throw Error(ErrorKind::kUsage,
                  {fmt::format("line {} of the hostfile {}", i + 1, what), fmt::format("{}:{}", name, i + 1), fix});
    };
    const auto found = parse_line(line);
    if (!found) refuse(fmt::format("is not a machine: '{}'", line), kAdvice);
    const auto same = [&](const HostSlots& each) { return each.host == found->host; };
    if (std::any_of(hosts.begin(), hosts.end(), same)) {
      refuse(fmt::format("names {} again", found->host), "keep one line for each machine");
    }
    if (found->slots == 0) {
      refuse(fmt::format("gives {} no slots", found->host), "give it at least one, or remove the line");
    }
    hosts.push_back({found->host, first_slots(found->slots)});
  }
  if (hosts.empty()) throw Error(ErrorKind::kUsage, {"the hostfile names no machines", name, kAdvice});
  return hosts;
}

std::vector<HostSlots> read_hostfile(const std::filesystem::path& path) {
  return parse_hostfile(read_input_lines(path, ErrorKind::kUsage), path.string());
}

std::vector<int> first_slots(int count) {
  std::vector<int> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

int rank_count(const std::vector<HostSlots>& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const HostSlots& each) { return sum + static_cast<int>(each.slots.size()); });
}

}  // namespace tessera::launch

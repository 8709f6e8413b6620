#include "tessera/base/slurm_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr size_t kMostDigits = 9;
constexpr size_t kLongestName = 255;                 // of a host, in DNS
constexpr size_t kMostCharacters = size_t{1} << 20;  // of all names; most hosts have names of 16 at most
constexpr size_t kLongestShown = 200;

[[noreturn]] void refuse(const std::string& variable, std::string_view list, const std::string& why) {
  const std::string shown =
      list.size() > kLongestShown ? std::string(list.substr(0, kLongestShown)) + "…" : std::string(list);
  throw Error(ErrorKind::kUsage, {fmt::format("{} is '{}', {}", variable, shown, why), "the environment",
                                  "leave it as Slurm sets it, or start the ranks with srun"});
}

std::optional<uint64_t> number_of(std::string_view digits) {
  if (digits.empty() || digits.size() > kMostDigits) return std::nullopt;
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

// At the commas that are in no bracket.
std::vector<std::string_view> names_of(std::string_view list) {
  std::vector<std::string_view> names;
  size_t begin = 0;
  bool inside = false;
  for (size_t at = 0; at <= list.size(); ++at) {
    if (at == list.size() || (list[at] == ',' && !inside)) {
      names.push_back(list.substr(begin, at - begin));
      begin = at + 1;
    } else if (list[at] == '[') {
      inside = true;
    } else if (list[at] == ']') {
      inside = false;
    }
  }
  return names;
}

class HostNames {
 public:
  HostNames(std::string_view list, const std::string& variable) : list_(list), variable_(variable) {}

  std::vector<std::string> all() {
    for (const std::string_view name : names_of(list_)) {
      for (std::string& host : expanded(name)) {
        characters_ += host.size();
        hosts_.push_back(std::move(host));
        require_room(hosts_.size(), characters_);
      }
    }
    return std::move(hosts_);
  }

 private:
  // The names that begin as far as has been read, from left to right.
  std::vector<std::string> expanded(std::string_view name) const {
    if (name.empty()) refuse(variable_, list_, "where a host has no name");
    std::vector<std::string> made{""};
    while (!name.empty()) {
      const size_t bracket = name.find_first_of("[]");
      if (made.front().size() + std::min(name.size(), bracket) > kLongestName) {
        refuse(variable_, list_, "where a host's name is too long");
      }
      const std::string_view piece = name.substr(0, bracket);
      require_room(made.size(), made.size() * (made.front().size() + piece.size()));
      for (std::string& each : made) each += piece;
      if (bracket == std::string_view::npos) break;
      const size_t end = name.find(']');
      if (name[bracket] == ']' || end == std::string_view::npos) {
        refuse(variable_, list_, "where a bracket has no other half");
      }
      made = with_numbers(made, numbers_of(name.substr(bracket + 1, end - bracket - 1)));
      name.remove_prefix(end + 1);
    }
    return made;
  }

  std::vector<std::string> with_numbers(const std::vector<std::string>& begins,
                                        const std::vector<std::string>& numbers) const {
    const uint64_t hosts = begins.size() * numbers.size();
    require_room(hosts, hosts * (begins.front().size() + (numbers.empty() ? 0 : numbers.front().size())));
    std::vector<std::string> made;
    for (const std::string& begin : begins) {
      for (const std::string& number : numbers) made.push_back(begin + number);
    }
    return made;
  }

  // "01-03,7"
  std::vector<std::string> numbers_of(std::string_view ranges) const {
    std::vector<std::string> numbers;
    for (const std::string_view range : names_of(ranges)) {
      const std::string_view first = range.substr(0, range.find('-'));
      const std::string_view last = first.size() == range.size() ? first : range.substr(first.size() + 1);
      const auto from = number_of(first);
      const auto to = number_of(last);
      if (!from || !to || *to < *from) refuse(variable_, list_, fmt::format("where [{}] has no numbers", ranges));
      const uint64_t count = numbers.size() + (*to - *from) + 1;
      require_room(count, count * first.size());
      for (uint64_t number = *from; number <= *to; ++number) {
        numbers.push_back(fmt::format("{:0{}}", number, first.size()));
      }
    }
    return numbers;
  }

  void require_room(uint64_t hosts, uint64_t characters) const {
    if (hosts > kMostSlurmHosts) refuse(variable_, list_, fmt::format("more than {} hosts", kMostSlurmHosts));
    if (characters > kMostCharacters) {
      refuse(variable_, list_, fmt::format("more than {} characters of hosts' names", kMostCharacters));
    }
  }

  std::string_view list_;
  const std::string& variable_;
  std::vector<std::string> hosts_;
  uint64_t characters_ = 0;  // of them
};

}  // namespace

std::vector<std::string> slurm_hosts(std::string_view list, const std::string& variable) {
  return HostNames(list, variable).all();
}

std::vector<int> slurm_counts(std::string_view list, const std::string& variable) {
  constexpr const char* kForm = "and not counts such as 2(x3),1";
  std::vector<int> counts;
  for (const std::string_view part : names_of(list)) {
    const size_t open = part.find("(x");
    const auto count = number_of(part.substr(0, open));
    std::optional<uint64_t> times = 1;
    if (open != std::string_view::npos) {
      if (!part.ends_with(')')) refuse(variable, list, kForm);
      times = number_of(part.substr(open + 2, part.size() - open - 3));
    }
    if (!count || *count < 1 || !times || *times < 1) refuse(variable, list, kForm);
    if (counts.size() + *times > kMostSlurmHosts) {
      refuse(variable, list, fmt::format("more than {} hosts", kMostSlurmHosts));
    }
    counts.insert(counts.end(), *times, static_cast<int>(*count));
  }
  return counts;
}

}  // namespace tessera

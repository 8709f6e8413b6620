#include "tessera/launch/host_filter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/trimmed.h"

namespace tessera::launch {
namespace {

constexpr const char* kCommandLine = "the command line";

[[noreturn]] void refuse(const std::string& what, const std::string& where, const std::string& fix) {
  throw Error(ErrorKind::kUsage, {what, where, fix});
}

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

// With blanks around it, as in CUDA_VISIBLE_DEVICES="0, 1".
std::optional<int> slot_number(std::string_view text) {
  text = trimmed(text, " ");
  int slot = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slot);
  if (error != std::errc() || end != text.data() + text.size() || slot < 0) return std::nullopt;
  return slot;
}

const HostSlots* find_host(const std::vector<HostSlots>& hosts, const std::string& host) {
  const auto found = std::find_if(hosts.begin(), hosts.end(), [&](const HostSlots& each) { return each.host == host; });
  return found == hosts.end() ? nullptr : &*found;
}

bool has_slot(const HostSlots& host, int slot) {
  return std::find(host.slots.begin(), host.slots.end(), slot) != host.slots.end();
}

void check_one_filter(const std::string& include, const std::string& exclude) {
  if (include.empty() || exclude.empty()) return;
  refuse("--include and --exclude are both given", kCommandLine, "keep one of them");
}

void check_filter(const std::vector<HostSlots>& hosts, const std::vector<HostSlots>& wanted, const char* option) {
  for (const HostSlots& want : wanted) {
    const HostSlots* const host = find_host(hosts, want.host);
    if (host == nullptr) {
      std::vector<std::string> names;
      for (const HostSlots& each : hosts) names.push_back(each.host);
      refuse(fmt::format("'{}' is not in the list of machines", want.host), option,
             fmt::format("use one of {}", fmt::join(names, ", ")));
    }
    for (const int slot : want.slots) {
      if (has_slot(*host, slot)) continue;
      refuse(fmt::format("{} has no slot {}", want.host, slot), option,
             fmt::format("its slots are numbered {}", fmt::join(host->slots, ", ")));
    }
  }
}

}  // namespace

HostSlots parse_filter_node(const std::string& text) {
  const std::vector<std::string> parts = parts_of(text, ':');
  const auto refuse_it = [&] {
    refuse(fmt::format("'{}' is not a machine filter", text), "--include or --exclude",
           "write it like worker-0 or worker-0:0,2, with @ between several");
  };
  if (parts.size() > 2 || parts[0].empty()) refuse_it();
  HostSlots node{parts[0], {}};
  if (parts.size() == 1) return node;
  for (const std::string& part : parts_of(parts[1], ',')) {
    const auto slot = slot_number(part);
    if (!slot) refuse_it();
    node.slots.push_back(*slot);
  }
  return node;
}

std::vector<HostSlots> parse_filter(const std::string& text) {
  std::vector<HostSlots> nodes;
  for (const std::string& part : parts_of(text, '@')) {
    const HostSlots node = parse_filter_node(part);
    const auto known =
        std::find_if(nodes.begin(), nodes.end(), [&](const HostSlots& each) { return each.host == node.host; });
    const bool everything = node.slots.empty() || (known != nodes.end() && known->slots.empty());
    HostSlots& merged = known != nodes.end() ? *known : nodes.emplace_back(HostSlots{node.host, {}});
    std::set<int> slots(merged.slots.begin(), merged.slots.end());
    slots.insert(node.slots.begin(), node.slots.end());
    merged.slots = everything ? std::vector<int>{} : std::vector<int>(slots.begin(), slots.end());
  }
  return nodes;
}

std::vector<HostSlots> filter_hosts(const std::vector<HostSlots>& hosts, const HostFilter& filter) {
  check_one_filter(filter.include, filter.exclude);
  const bool includes = !filter.include.empty();
  if (!includes && filter.exclude.empty()) return hosts;
  const std::vector<HostSlots> wanted = parse_filter(includes ? filter.include : filter.exclude);
  check_filter(hosts, wanted, includes ? "--include" : "--exclude");
  std::vector<HostSlots> left;
  for (const HostSlots& host : hosts) {
    const HostSlots* const named = find_host(wanted, host.host);
    HostSlots kept{host.host, {}};
    if (includes && named != nullptr) kept.slots = named->slots.empty() ? host.slots : named->slots;
    if (!includes && named == nullptr) kept.slots = host.slots;
    if (!includes && named != nullptr && !named->slots.empty()) {
      std::copy_if(host.slots.begin(), host.slots.end(), std::back_inserter(kept.slots),
                   [&](int slot) { return !has_slot(*named, slot); });
    }
    if (!kept.slots.empty()) left.push_back(std::move(kept));
  }
  return left;
}

std::vector<HostSlots> first_hosts(const std::vector<HostSlots>& hosts, int num_nodes, int num_gpus) {
  const size_t count = num_nodes > 0 ? std::min(hosts.size(), static_cast<size_t>(num_nodes)) : hosts.size();
  std::vector<HostSlots> first(hosts.begin(), hosts.begin() + static_cast<std::ptrdiff_t>(count));
  for (HostSlots& host : first) {
    if (num_gpus > 0) host.slots = first_slots(num_gpus);
  }
  return first;
}

void check_host_options(const LaunchRequest& request) {
  const std::pair<const char*, int> counts[] = {{"--num_nodes", request.num_nodes}, {"--num_gpus", request.num_gpus}};
  for (const auto& [option, count] : counts) {
    if (count == 0 || count < -1) {
      refuse(fmt::format("{} is {}: nothing would run", option, count), kCommandLine,
             "use at least 1, or leave it out");
    }
  }
  check_one_filter(request.include, request.exclude);
  const bool filters = !request.include.empty() || !request.exclude.empty();
  if (filters && (request.num_nodes > 0 || request.num_gpus > 0)) {
    refuse("--num_nodes and --num_gpus cannot be used with --include and --exclude", kCommandLine,
           "keep only the filter, which says which machines and slots to use");
  }
  if (request.node_rank >= 0 && !request.no_ssh) {
    refuse("--node_rank only makes sense with --no_ssh", kCommandLine, "add --no_ssh, or leave out --node_rank");
  }
  const bool named = !request.hostfile.empty() && request.hostfile != kDefaultHostfile;
  if (named && !std::filesystem::is_regular_file(request.hostfile)) {
    refuse(fmt::format("there is no hostfile {}", request.hostfile), "--hostfile",
           "name a file with one machine per line, like 'worker-0 slots=4'; without the option, this machine is used");
  }
}

void check_without_hostfile(const LaunchRequest& request) {
  const std::string none = "there is no hostfile" + (request.hostfile.empty() ? "" : " " + request.hostfile);
  if (request.num_nodes > 1 && !request.no_ssh) {
    refuse(fmt::format("--num_nodes is {}, and {}", request.num_nodes, none), kCommandLine,
           "name the machines in a hostfile (-H), or give the command on each with --no_ssh --node_rank");
  }
  const bool includes = !request.include.empty();
  if (!includes && request.exclude.empty()) return;
  for (const HostSlots& node : parse_filter(includes ? request.include : request.exclude)) {
    if (node.host == "localhost") continue;
    refuse(fmt::format("{} names '{}', and {}", includes ? "--include" : "--exclude", node.host, none), kCommandLine,
           "name the machines in a hostfile (-H), or use localhost for this one");
  }
}

std::vector<HostSlots> choose_hosts(const LaunchRequest& request, const std::vector<HostSlots>& pool) {
  if (request.num_nodes > static_cast<int>(pool.size())) {
    refuse(fmt::format("--num_nodes is {}, but the hostfile names {}", request.num_nodes, pool.size()),
           request.hostfile, fmt::format("use at most {}, or add machines to the hostfile", pool.size()));
  }
  const std::vector<HostSlots> filtered = filter_hosts(pool, {request.include, request.exclude});
  for (const HostSlots& host : filtered) {
    if (request.num_gpus <= static_cast<int>(host.slots.size())) continue;
    const auto fewest = std::min_element(filtered.begin(), filtered.end(), [](const auto& one, const auto& other) {
      return one.slots.size() < other.slots.size();
    });
    refuse(fmt::format("--num_gpus is {}, and {} has {}", request.num_gpus, host.host,
                       count_of(static_cast<int64_t>(host.slots.size()), "slot")),
           request.hostfile, fmt::format("use at most {}, or edit the hostfile", fewest->slots.size()));
  }
  std::vector<HostSlots> chosen = first_hosts(filtered, request.num_nodes, request.num_gpus);
  if (chosen.empty()) refuse("the filter leaves no slots to run on", "--exclude", "exclude fewer slots");
  return chosen;
}

}  // namespace tessera::launch

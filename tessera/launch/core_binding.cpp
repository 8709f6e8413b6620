#include "tessera/launch/core_binding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/launch/program_path.h"

namespace tessera::launch {
namespace {

constexpr int kMostCores = 65536;  // a longer range is a slip of the finger

std::optional<int> core_number(std::string_view text) {
  int core = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), core);
  if (error != std::errc() || end != text.data() + text.size() || core < 0 || core >= kMostCores) return std::nullopt;
  return core;
}

bool all_in(const std::vector<int>& cores, const std::vector<int>& node) {
  return std::all_of(cores.begin(), cores.end(),
                     [&](int core) { return std::find(node.begin(), node.end(), core) != node.end(); });
}

}  // namespace

std::vector<int> parse_core_range(const std::string& text) {
  const size_t dash = text.find('-');
  const auto first = core_number(std::string_view(text).substr(0, dash));
  const auto last = dash == std::string::npos ? first : core_number(std::string_view(text).substr(dash + 1));
  if (!first || !last) {
    throw Error(ErrorKind::kUsage, {fmt::format("'{}' is not a core or a range of cores", text), "--bind_core_list",
                                    "write it like 3 or 2-4, with commas between them"});
  }
  if (*first > *last) {
    throw Error(ErrorKind::kUsage, {fmt::format("the range of cores '{}' ends before it starts", text),
                                    "--bind_core_list", fmt::format("write {}-{}", *last, *first)});
  }
  std::vector<int> cores;
  for (int core = *first; core <= *last; ++core) cores.push_back(core);
  return cores;
}

std::vector<int> parse_core_list(const std::string& text) {
  std::vector<int> cores;
  size_t begin = 0;
  while (true) {
    const size_t end = text.find(',', begin);
    const std::string part = text.substr(begin, end - begin);
    const std::vector<int> found = parse_core_range(part);
    if (!cores.empty() && found.front() <= cores.back()) {
      throw Error(ErrorKind::kUsage,
                  {fmt::format("in the cores '{}', '{}' does not come after {}", text, part, cores.back()),
                   "--bind_core_list", "list them in ascending order, each once"});
    }
    cores.insert(cores.end(), found.begin(), found.end());
    if (end == std::string::npos) return cores;
    begin = end + 1;
  }
}

std::vector<std::vector<int>> numa_cores() {
  std::vector<std::vector<int>> nodes;
  while (true) {
    std::ifstream file(fmt::format("/sys/devices/system/node/node{}/cpulist", nodes.size()));
    std::string cores;
    if (!std::getline(file, cores)) return nodes;
    nodes.push_back(cores.empty() ? std::vector<int>{} : parse_core_list(cores));  // empty: a node of memory alone
  }
}

CoreBinding bind_cores(const CoreShare& share) {
  std::vector<int> cores;
  if (share.core_list.empty()) {
    for (const auto& node : share.numa_nodes) cores.insert(cores.end(), node.begin(), node.end());
  } else {
    cores = parse_core_list(share.core_list);
  }
  const auto count = static_cast<std::ptrdiff_t>(cores.size()) / std::max(1, share.ranks);
  if (count < 1) {
    throw Error(
        ErrorKind::kUsage,
        {fmt::format("there are fewer cores ({}) than ranks to bind to them ({})", cores.size(), share.ranks),
         share.core_list.empty() ? "this machine" : "--bind_core_list", "start fewer ranks, or do not bind them"});
  }
  const auto begin = cores.begin() + count * share.local_rank;
  CoreBinding binding{.cores = {begin, begin + count}, .command = {"numactl"}};
  for (size_t node = 0; share.numa_nodes.size() > 1 && node < share.numa_nodes.size(); ++node) {
    if (all_in(binding.cores, share.numa_nodes[node])) {
      binding.command.insert(binding.command.end(), {"-m", std::to_string(node)});
    }
  }
  binding.command.insert(binding.command.end(), {"-C", fmt::format("{}", fmt::join(binding.cores, ","))});
  return binding;
}

void check_core_options(bool binds, const std::string& core_list) {
  if (core_list.empty()) return;
  parse_core_list(core_list);
  if (binds) return;
  throw Error(ErrorKind::kUsage, {"--bind_core_list only makes sense with --bind_cores_to_rank", "the command line",
                                  "add --bind_cores_to_rank, or leave out --bind_core_list"});
}

void require_core_binding() {
  if (std::getenv("KMP_AFFINITY") != nullptr) {
    throw Error(ErrorKind::kUsage, {"KMP_AFFINITY is set and binds threads in its own way", "--bind_cores_to_rank",
                                    "unset it, or leave the option out"});
  }
  if (!program_exists("numactl")) {
    throw Error(ErrorKind::kUsage, {"--bind_cores_to_rank needs numactl, which is not installed", "this machine",
                                    "install it, or leave the option out"});
  }
}

}  // namespace tessera::launch

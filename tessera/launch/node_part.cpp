#include "tessera/launch/node_part.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tessera/base/deadline.h"
#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/launch/node_run.h"

namespace tessera::launch {
namespace {

using nlohmann::json;

constexpr std::string_view kSignal = "signal ";
constexpr const char* kWhere = "the line from the launcher";
constexpr std::chrono::milliseconds kLineTime{60000};
constexpr size_t kLongestLine = 16 << 20;

json hosts_json(const std::vector<HostSlots>& hosts) {
  json list = json::array();
  for (const HostSlots& host : hosts) list.push_back({{"host", host.host}, {"slots", host.slots}});
  return list;
}

std::vector<HostSlots> hosts_of(const json& list) {
  std::vector<HostSlots> hosts;
  for (const json& each : list) hosts.push_back({each.at("host"), wholes_of<int>(each.at("slots"))});
  return hosts;
}

// Byte by byte: what follows the line is not ours to take.
std::string read_line() {
  const Deadline deadline(kLineTime, "the line from the launcher");
  std::string line;
  char byte = 0;
  while (line.size() < kLongestLine) {
    pollfd readable{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, 1000) <= 0) {
      if (!deadline.expired()) continue;
      throw Error(ErrorKind::kPeer, {"the launcher has not said within a minute what to run here", kWhere,
                                     "look at the network between the two hosts"});
    }
    const ssize_t count = read(STDIN_FILENO, &byte, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || byte == '\n') break;
    line += byte;
  }
  return line;
}

}  // namespace

std::string word_of_signal(int signal) { return fmt::format("{}{}\n", kSignal, signal); }

int signal_of_word(const std::string& word) {
  if (!word.starts_with(kSignal)) return 0;
  int signal = 0;
  std::from_chars(word.data() + kSignal.size(), word.data() + word.size(), signal);
  return signal;
}

std::string node_part_line(const NodePart& part) {
  const ClusterPlan& cluster = part.cluster;
  const json line = {{"hosts", hosts_json(cluster.hosts)},
                     {"interpreter", cluster.program.interpreter},
                     {"name", cluster.program.name},
                     {"arguments", cluster.program.arguments},
                     {"passes_local_rank", cluster.program.passes_local_rank},
                     {"master_addr", cluster.master_addr},
                     {"master_port", cluster.master_port},
                     {"sets_devices", cluster.sets_devices},
                     {"binds_cores", cluster.binds_cores},
                     {"core_list", cluster.core_list},
                     {"log_folder", cluster.log_folder},
                     {"environment", cluster.environment},
                     {"rank_zero_plain", cluster.output == RankOutput::kRankZeroPlain},
                     {"node_rank", part.node_rank},
                     {"saves_pid", part.saves_pid},
                     {"silence", part.silence.count()},
                     {"folder", part.folder}};
  try {
    return line.dump() + "\n";
  } catch (const json::exception&) {
    throw Error(ErrorKind::kUsage, {"a word of the command line, or a variable that goes to other hosts, is not UTF-8",
                                    "the command line, or the environment", "write it in UTF-8, or unset it"});
  }
}

NodePart parse_node_part(const std::string& line) {
  try {
    const json found = parse_json(line, {.where = kWhere, .kind = ErrorKind::kUsage});
    NodePart part;
    ClusterPlan& cluster = part.cluster;
    cluster.hosts = hosts_of(found.at("hosts"));
    found.at("interpreter").get_to(cluster.program.interpreter);
    found.at("name").get_to(cluster.program.name);
    found.at("arguments").get_to(cluster.program.arguments);
    found.at("passes_local_rank").get_to(cluster.program.passes_local_rank);
    found.at("master_addr").get_to(cluster.master_addr);
    cluster.master_port = whole_of<int>(found.at("master_port"));
    found.at("sets_devices").get_to(cluster.sets_devices);
    found.at("binds_cores").get_to(cluster.binds_cores);
    found.at("core_list").get_to(cluster.core_list);
    found.at("log_folder").get_to(cluster.log_folder);
    found.at("environment").get_to(cluster.environment);
    cluster.output = found.at("rank_zero_plain").get<bool>() ? RankOutput::kRankZeroPlain : RankOutput::kPrefixAll;
    part.node_rank = whole_of<int>(found.at("node_rank"));
    found.at("saves_pid").get_to(part.saves_pid);
    part.silence = std::chrono::seconds(whole_of<int>(found.at("silence")));
    found.at("folder").get_to(part.folder);
    return part;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // of a value that is missing, or of another type
    throw Error(ErrorKind::kUsage, {fmt::format("the launcher is of another version: {}", error.what()), kWhere,
                                    "use the same version of tessera on every host"});
  }
}

int run_node_part() {
  const NodePart part = parse_node_part(read_line());
  std::error_code error;
  std::filesystem::current_path(part.folder, error);
  if (error) {
    throw Error(ErrorKind::kUsage, {fmt::format("there is no folder {} on this host", part.folder), kWhere,
                                    "start the run in a folder that every host has under this name"});
  }
  check_node_rank(part.cluster.hosts, part.node_rank);
  return run_node(part.cluster, {.node_rank = part.node_rank,
                                 .pid_file = part.saves_pid ? static_cast<int>(getpid()) : 0,
                                 .shares_cores = true,
                                 .label = part.cluster.hosts[static_cast<size_t>(part.node_rank)].host,
                                 .supervision = {.obeys_input = true, .silence = part.silence}})
      .code;
}

}  // namespace tessera::launch

#include "tessera/launch/exported_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/trimmed.h"

namespace tessera::launch {
namespace {

constexpr const char* kSecret = "TESSERA_SECRET";
constexpr const char* kHostName = "TESSERA_HOST";  // of this host alone
constexpr const char* kHostsOwnMarker = "AISC_JOB_NAME";
constexpr const char* kHostsOwn[] = {"NCCL_IB_HCA", "UCX_NET_DEVICES"};

bool starts_with_one_of(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

}  // namespace

void set_export(Exports& exports, const std::string& name, const std::string& value) {
  const auto known = std::find_if(exports.begin(), exports.end(), [&](const auto& each) { return each.first == name; });
  if (known != exports.end()) {
    known->second = value;
  } else {
    exports.emplace_back(name, value);
  }
}

Exports parse_environment_file(const std::vector<std::string>& lines, const std::string& file) {
  Exports found;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = trimmed(lines[i]);
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) {
      throw Error(ErrorKind::kUsage, {fmt::format("'{}' is not KEY=VALUE", line), fmt::format("{}:{}", file, i + 1),
                                      "write one variable per line"});
    }
    set_export(found, std::string(trimmed(line.substr(0, equals))), std::string(trimmed(line.substr(equals + 1))));
  }
  return found;
}

std::string environment_file_name() { return env_text("DS_ENV_FILE").value_or(".deepspeed_env"); }

Exports read_environment_file(const std::string& name) {
  const std::filesystem::path folders[] = {env_text("HOME").value_or("."), "."};
  for (const std::filesystem::path& folder : folders) {
    const std::filesystem::path path = folder / name;
    std::error_code none;
    if (!std::filesystem::is_regular_file(path, none)) continue;
    return parse_environment_file(read_input_lines(path, ErrorKind::kUsage), path.string());
  }
  return {};
}

const std::vector<std::string>& exported_prefixes() {
  static const std::vector<std::string> kPrefixes = {"MLFLOW", "PYTHON", "MV2", "UCX", "TESSERA_"};
  return kPrefixes;
}

Exports exported_variables(const Environment& environment, const std::vector<std::string>& more) {
  std::vector<std::string> withheld = {kSecret, kHostName};
  if (environment.contains(kHostsOwnMarker))
    withheld.insert(withheld.end(), std::begin(kHostsOwn), std::end(kHostsOwn));
  Exports found;
  for (const auto& [name, value] : environment) {
    const bool wanted = starts_with_one_of(name, exported_prefixes()) || starts_with_one_of(name, more);
    if (wanted && std::find(withheld.begin(), withheld.end(), name) == withheld.end()) found.emplace_back(name, value);
  }
  return found;
}

void require_no_open_secret(const Environment& environment) {
  if (!environment.contains(kSecret)) return;
  throw Error(
      ErrorKind::kUsage,
      {"TESSERA_SECRET would be on the command lines of the other machines, where anybody can read it",
       "the environment", "write it to a file that only you can read on every machine, and set TESSERA_SECRET_FILE"});
}

std::string python_path_with(const std::string& folder, const Environment& environment) {
  const auto known = environment.find("PYTHONPATH");
  return known == environment.end() || known->second.empty() ? folder : folder + ":" + known->second;
}

Environment own_environment() {
  Environment found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string::npos) found.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

}  // namespace tessera::launch

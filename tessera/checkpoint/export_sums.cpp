#include "tessera/checkpoint/export_sums.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/base/plain_name.h"
#include "tessera/checkpoint/own_sum.h"
#include "tessera/checkpoint/weight_files.h"
#include "tessera/storage/atomic_dir.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

namespace {

constexpr const char* kExportFormat = "tessera-export";

storage::FileSum sum_of_file(const std::string& text) {
  storage::FileSum sum{.bytes = text.size(), .blocks = {}};
  for (size_t at = 0; at < text.size(); at += storage::kSumBlockBytes) {
    sum.blocks.push_back(
        storage::hash_of(text.data() + at, std::min<size_t>(storage::kSumBlockBytes, text.size() - at)));
  }
  return sum;
}

}  // namespace

bool is_export(const fs::path& folder) {
  if (fs::exists(folder / "manifest.json") || fs::exists(folder / "latest")) return false;
  if (fs::exists(folder / kExportSums) || fs::exists(folder / "config.json")) return true;
  std::error_code error;
  return std::any_of(fs::directory_iterator(folder, error), fs::directory_iterator(),
                     [](const fs::directory_entry& entry) { return is_weight_file(entry.path().filename().string()); });
}

ShardFile write_summed(const fs::path& folder, const std::string& name, const std::string& text) {
  storage::write_file_atomically(folder / name, text);
  return {name, sum_of_file(text)};
}

void write_export_sums(const fs::path& folder, const std::vector<ShardFile>& files) {
  nlohmann::ordered_json text = {
      {"format", kExportFormat}, {"version", 1}, {"xxh3", kNoSum}, {"block_bytes", storage::kSumBlockBytes}};
  text["files"] = nlohmann::ordered_json::array();
  for (const ShardFile& file : files) {
    text["files"].push_back(
        {{"name", file.name}, {"bytes", file.sum.bytes}, {"xxh3", storage::to_text(file.sum.blocks)}});
  }
  storage::write_file_atomically(folder / kExportSums, with_own_sum(text.dump(1) + "\n"));
}

std::vector<ShardFile> read_export_sums(const fs::path& folder) {
  const fs::path path = folder / kExportSums;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kData, {what, path.string(), "export the checkpoint again, without --weights-only"});
  };
  if (!fs::exists(path)) refuse("the exported folder has no checksums.json");
  const std::string written = read_input_file(path);
  if (!has_own_sum(written)) refuse("checksums.json does not match its checksum");
  std::vector<ShardFile> files;
  try {
    const nlohmann::json text = parse_json(written, {.where = path.string()});
    if (text.at("format") != kExportFormat || text.at("version") != 1 ||
        text.at("block_bytes") != storage::kSumBlockBytes) {
      refuse("checksums.json is of a format that this program does not know");
    }
    for (const nlohmann::json& file : text.at("files")) {
      files.push_back({file.at("name"), {whole_of<uint64_t>(file.at("bytes")), storage::blocks_of(file.at("xxh3"))}});
      if (!is_plain_name(files.back().name)) refuse("checksums.json names a file outside of its folder");
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {  // of the JSON library, or of a number that is no whole one
    refuse("checksums.json is not what an export writes");
  }
  return files;
}

}  // namespace tessera::checkpoint

#include "tessera/checkpoint/weight_files.h"

#include <fmt/format.h>

#include <cctype>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/checkpoint/export_sums.h"
#include "tessera/storage/state_dict_writer.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

namespace {

using Plan = std::vector<storage::PlannedTensor>;
using Read = std::function<at::Tensor(const std::string& name)>;

struct Names {
  std::string stem, suffix;

  std::string file(size_t number, size_t count) const {
    return count == 1 ? stem + suffix : fmt::format("{}-{:05}-of-{:05}{}", stem, number + 1, count, suffix);
  }
  std::string index() const { return stem + suffix + ".index.json"; }
};

Names names_of(WeightFormat format) {
  if (format == WeightFormat::kSafetensors) return {"model", ".safetensors"};
  return {"pytorch_model", ".bin"};
}

// In order, each part as large as it may be.
std::vector<Plan> parts_of(const Plan& plan, uint64_t max_bytes) {
  std::vector<Plan> parts(1);
  uint64_t bytes = 0;
  for (const storage::PlannedTensor& tensor : plan) {
    const uint64_t own = storage::data_bytes({tensor});
    if (!parts.back().empty() && bytes + own > max_bytes) {
      parts.emplace_back();
      bytes = 0;
    }
    parts.back().push_back(tensor);
    bytes += own;
  }
  return parts;
}

storage::FileSum write_part(const fs::path& path, const Plan& part, const Read& read, const WeightFiles& how) {
  if (how.format == WeightFormat::kSafetensors) {
    storage::SafetensorsWriter writer(path.string(), part, {{"format", "pt"}});
    for (const storage::PlannedTensor& tensor : part) writer.add(read(tensor.name));
    return writer.finish();
  }
  storage::StateDictWriter writer(path.string());
  for (const storage::PlannedTensor& tensor : part) {
    writer.add(tensor.name, read(tensor.name).view(tensor.shape));
    for (const auto& [alias, name] : how.aliases) {
      if (name == tensor.name) writer.add_alias(alias, name);
    }
  }
  return writer.finish();
}

}  // namespace

uint64_t shard_bytes(const std::string& text, const std::string& where) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  std::string unit = text.substr(digits);
  for (char& letter : unit) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  const std::map<std::string, uint64_t> units = {
      {"", 1}, {"B", 1}, {"KB", 1'000}, {"MB", 1'000'000}, {"GB", 1'000'000'000}};
  const auto found = units.find(unit);
  if (digits == 0 || digits > 9 || found == units.end() || std::stoull(text) == 0) {
    throw Error(ErrorKind::kUsage, {"'" + text + "' is not a size", where, "use a size such as 5GB or 200MB"});
  }
  return std::stoull(text) * found->second;
}

std::vector<ShardFile> write_weight_files(const fs::path& folder, const Plan& plan, const Read& read,
                                          const WeightFiles& how) {
  std::vector<ShardFile> written;
  const Names names = names_of(how.format);
  const std::vector<Plan> parts = parts_of(plan, how.max_shard_bytes);
  nlohmann::ordered_json index;
  index["metadata"] = {{"total_size", storage::data_bytes(plan)}};
  for (size_t number = 0; number < parts.size(); ++number) {
    const std::string file = names.file(number, parts.size());
    written.push_back({file, write_part(folder / file, parts[number], read, how)});
    for (const storage::PlannedTensor& tensor : parts[number]) {
      index["weight_map"][tensor.name] = file;
      if (how.format != WeightFormat::kStateDict) continue;
      for (const auto& [alias, name] : how.aliases) {
        if (name == tensor.name) index["weight_map"][alias] = file;
      }
    }
  }
  if (parts.size() > 1) written.push_back(write_summed(folder, names.index(), index.dump(2) + "\n"));
  return written;
}

bool is_weight_file(const std::string& name) {
  for (const WeightFormat format : {WeightFormat::kSafetensors, WeightFormat::kStateDict}) {
    const Names names = names_of(format);
    if (name == names.index() || (name.starts_with(names.stem) && name.ends_with(names.suffix))) return true;
  }
  return false;
}

}  // namespace tessera::checkpoint

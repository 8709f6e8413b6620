#include "tessera/checkpoint/manifest.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/storage/atomic_dir.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kFormat = "tessera-checkpoint";

// The manifest's own checksum, over its text with zeros in this place. It comes before the shards' of the same name.
constexpr std::string_view kOwnSum = "\"xxh3\": \"";
constexpr size_t kSumDigits = 16;

// The place of the digits; npos where there are none.
size_t place_of_own_sum(const std::string& text) {
  const size_t found = text.find(kOwnSum);
  if (found == std::string::npos || text.size() < found + kOwnSum.size() + kSumDigits) return std::string::npos;
  return found + kOwnSum.size();
}

[[noreturn]] void refuse(const std::string& what, const fs::path& where) {
  throw Error(ErrorKind::kData, {"the checkpoint cannot be used: " + what, where.string(),
                                 "name an earlier checkpoint in the same folder"});
}

StoredTensor tensor_of(const json& value) {
  StoredTensor tensor{.shape = value.at("shape").get<std::vector<int64_t>>(),
                      .kinds = value.at("kinds").get<std::vector<std::string>>(),
                      .steps = value.at("steps").get<int64_t>(),
                      .numbers = value.value("numbers", std::map<std::string, double>{}),
                      .pieces = {}};
  for (const json& piece : value.at("pieces")) {
    tensor.pieces.push_back({piece.at(0).get<size_t>(), piece.at(1).get<int64_t>(), piece.at(2).get<int64_t>()});
  }
  return tensor;
}

void check(const Manifest& manifest, const fs::path& folder) {
  for (const ShardFile& file : manifest.files) {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(folder / file.name, error);
    if (error && manifest.node_local) continue;  // another host's
    if (error) refuse(fmt::format("the shard file {} is missing", file.name), folder);
    if (bytes != file.sum.bytes) {
      refuse(fmt::format("the shard file {} has {} bytes instead of {}", file.name, bytes, file.sum.bytes), folder);
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    int64_t covered = 0;
    for (const Piece& piece : tensor.pieces) {
      if (piece.file >= manifest.files.size() || piece.first != covered || piece.numel < 1) {
        refuse(fmt::format("the pieces of '{}' do not fit together", name), folder / "manifest.json");
      }
      covered += piece.numel;
    }
    if (covered != tensor.numel()) {
      refuse(fmt::format("the pieces of '{}' hold {} of its {} elements", name, covered, tensor.numel()),
             folder / "manifest.json");
    }
  }
}

bool has_its_sum(std::string text) {
  const size_t place = place_of_own_sum(text);
  if (place == std::string::npos) return false;
  const std::string sum = text.substr(place, kSumDigits);
  text.replace(place, kSumDigits, std::string(kSumDigits, '0'));
  return sum == storage::to_text({storage::hash_of(text.data(), text.size())});
}

}  // namespace

int64_t StoredTensor::numel() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

std::string piece_name(const std::string& kind, const std::string& tensor) { return kind + "/" + tensor; }

std::string to_text(const Manifest& manifest) {
  nlohmann::ordered_json text;
  text["format"] = kFormat;
  text["version"] = kFormatVersion;
  text["xxh3"] = std::string(kSumDigits, '0');
  text["tag"] = manifest.tag;
  text["world_size"] = manifest.world_size;
  if (manifest.trainable_only) text["trainable_only"] = true;
  if (manifest.node_local) text["node_local"] = true;
  text["engine_state"] = manifest.engine_state;
  text["client_state"] = manifest.client_state;
  text["files"] = nlohmann::ordered_json::array();
  text["block_bytes"] = storage::kSumBlockBytes;
  for (const ShardFile& file : manifest.files) {
    text["files"].push_back(
        {{"name", file.name}, {"bytes", file.sum.bytes}, {"xxh3", storage::to_text(file.sum.blocks)}});
  }
  text["aliases"] = manifest.aliases;
  text["tensors"] = nlohmann::ordered_json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    auto pieces = nlohmann::ordered_json::array();
    for (const Piece& piece : tensor.pieces) {
      pieces.push_back(nlohmann::ordered_json::array({piece.file, piece.first, piece.numel}));
    }
    auto& entry = text["tensors"][name] = {
        {"shape", tensor.shape}, {"kinds", tensor.kinds}, {"steps", tensor.steps}, {"pieces", pieces}};
    if (!tensor.numbers.empty()) entry["numbers"] = tensor.numbers;
  }
  std::string written = text.dump(1) + "\n";
  const std::string sum = storage::to_text({storage::hash_of(written.data(), written.size())});
  return written.replace(place_of_own_sum(written), kSumDigits, sum);
}

Manifest read_manifest(const fs::path& checkpoint_folder) {
  const fs::path path = checkpoint_folder / "manifest.json";
  if (!fs::exists(path)) refuse("it has no manifest.json", checkpoint_folder);
  const std::string written = storage::read_file(path);
  const json text = json::parse(written, nullptr, /*allow_exceptions=*/false);
  const auto is = [&](const char* key, json::value_t type) { return text.contains(key) && text[key].type() == type; };
  if (!text.is_object() || !is("format", json::value_t::string) || text["format"] != kFormat ||
      !is("version", json::value_t::number_unsigned)) {
    refuse("manifest.json is damaged", path);
  }
  const int version = text["version"];
  if (version > kFormatVersion) {
    refuse(fmt::format("its format version is {}, but this program knows versions up to {}", version, kFormatVersion),
           path);
  }
  if (version < 1 || (version > 1 && !has_its_sum(written))) refuse("manifest.json is damaged", path);
  Manifest manifest;
  try {
    if (version > 1 && text.at("block_bytes") != storage::kSumBlockBytes) {
      refuse(fmt::format("its checksums cover blocks of {} bytes", text.at("block_bytes").dump()), path);
    }
    manifest.trainable_only = text.value("trainable_only", false);
    manifest.node_local = text.value("node_local", false);
    manifest.tag = text.at("tag").get<std::string>();
    manifest.world_size = text.at("world_size").get<int>();
    manifest.engine_state = text.at("engine_state");
    manifest.client_state = text.at("client_state");
    manifest.aliases = text.at("aliases").get<std::map<std::string, std::string>>();
    for (const json& file : text.at("files")) {
      manifest.files.push_back(
          {file.at("name").get<std::string>(),
           {file.at("bytes").get<uint64_t>(), storage::blocks_of(file.value("xxh3", std::string()))}});
    }
    for (const auto& [name, value] : text.at("tensors").items()) manifest.tensors.emplace(name, tensor_of(value));
  } catch (const json::exception& error) {
    refuse(std::string("manifest.json is damaged: ") + error.what(), path);
  }
  check(manifest, checkpoint_folder);
  return manifest;
}

std::string read_tag(const fs::path& path) {
  if (!fs::is_regular_file(path)) return "";
  std::string tag = storage::read_file(path);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ')) tag.pop_back();
  return tag;
}

std::string read_latest(const fs::path& folder) { return read_tag(folder / "latest"); }

}  // namespace tessera::checkpoint

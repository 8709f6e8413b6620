#include "tessera/checkpoint/manifest.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/storage/atomic_dir.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kFormat = "tessera-checkpoint";

[[noreturn]] void refuse(const std::string& what, const fs::path& where) {
  throw Error(ErrorKind::kData, {"the checkpoint cannot be used: " + what, where.string(),
                                 "name an earlier checkpoint of the same folder"});
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
    if (error) refuse(fmt::format("the shard file {} is missing", file.name), folder);
    if (bytes != file.bytes) {
      refuse(fmt::format("the shard file {} has {} bytes instead of {}", file.name, bytes, file.bytes), folder);
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
  text["tag"] = manifest.tag;
  text["world_size"] = manifest.world_size;
  text["engine_state"] = manifest.engine_state;
  text["client_state"] = manifest.client_state;
  text["files"] = nlohmann::ordered_json::array();
  for (const ShardFile& file : manifest.files) text["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
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
  return text.dump(1) + "\n";
}

Manifest read_manifest(const fs::path& checkpoint_folder) {
  const fs::path path = checkpoint_folder / "manifest.json";
  if (!fs::exists(path)) refuse("it has no manifest.json", checkpoint_folder);
  const json text = json::parse(storage::read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!text.is_object() || text.value("format", "") != kFormat) refuse("manifest.json is damaged", path);
  const int version = text.value("version", 0);
  if (version < 1 || version > kFormatVersion) {
    refuse(fmt::format("its format has version {} where this program knows up to {}", version, kFormatVersion), path);
  }
  Manifest manifest;
  try {
    manifest.tag = text.at("tag").get<std::string>();
    manifest.world_size = text.at("world_size").get<int>();
    manifest.engine_state = text.at("engine_state");
    manifest.client_state = text.at("client_state");
    manifest.aliases = text.at("aliases").get<std::map<std::string, std::string>>();
    for (const json& file : text.at("files")) {
      manifest.files.push_back({file.at("name").get<std::string>(), file.at("bytes").get<uint64_t>()});
    }
    for (const auto& [name, value] : text.at("tensors").items()) manifest.tensors.emplace(name, tensor_of(value));
  } catch (const json::exception& error) {
    refuse(std::string("manifest.json is damaged: ") + error.what(), path);
  }
  check(manifest, checkpoint_folder);
  return manifest;
}

std::string read_latest(const fs::path& folder) {
  const fs::path path = folder / "latest";
  if (!fs::exists(path)) return "";
  std::string tag = storage::read_file(path);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ')) tag.pop_back();
  return tag;
}

}  // namespace tessera::checkpoint

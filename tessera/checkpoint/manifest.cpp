#include "tessera/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/base/plain_name.h"
#include "tessera/checkpoint/own_sum.h"
#include "tessera/layout/param_spec.h"
#include "tessera/storage/atomic_dir.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr const char* kFormat = "tessera-checkpoint";
constexpr int kVersionWithoutFolds = 3;

[[noreturn]] void refuse(const std::string& what, const fs::path& where) {
  throw Error(ErrorKind::kData, {"the checkpoint cannot be used: " + what, where.string(),
                                 "name an earlier checkpoint in the same folder"});
}

[[noreturn]] void refuse_damaged(const std::string& what, const fs::path& where) {
  throw Error(ErrorKind::kData,
              {"the checkpoint is damaged: " + what, where.string(), "name an earlier checkpoint in the same folder"});
}

StoredTensor tensor_of(const json& value) {
  StoredTensor tensor{.shape = wholes_of<int64_t>(value.at("shape")),
                      .folded = wholes_of<int64_t>(value.value("folded", json::array())),
                      .kinds = value.at("kinds").get<std::vector<std::string>>(),
                      .steps = whole_of<int64_t>(value.at("steps")),
                      .numbers = value.value("numbers", std::map<std::string, double>{}),
                      .pieces = {}};
  for (const json& piece : value.at("pieces")) {
    const auto begin = whole_of<int64_t>(piece.at(1)), numel = whole_of<int64_t>(piece.at(2));
    if (begin < 0 || numel < 0 || numel > std::numeric_limits<int64_t>::max() - begin) return tensor;  // not covered
    layout::Box box = layout::Box::whole(tensor.cut_shape());
    if (piece.size() > 3) box = {wholes_of<int64_t>(piece.at(3)), wholes_of<int64_t>(piece.at(4))};
    tensor.pieces.push_back({whole_of<size_t>(piece.at(0)), {std::move(box), {begin, begin + numel}}});
  }
  return tensor;
}

ordered_json json_of(const StoredTensor& tensor) {
  auto pieces = ordered_json::array();
  const layout::Box whole = layout::Box::whole(tensor.cut_shape());
  for (const auto& [file, at] : tensor.pieces) {
    pieces.push_back(ordered_json::array({file, at.run.begin, at.run.numel()}));
    if (at.box == whole) continue;
    pieces.back().push_back(at.box.offset);
    pieces.back().push_back(at.box.extent);
  }
  ordered_json json = {
      {"shape", tensor.shape}, {"kinds", tensor.kinds}, {"steps", tensor.steps}, {"pieces", std::move(pieces)}};
  if (!tensor.folded.empty()) json["folded"] = tensor.folded;
  if (!tensor.numbers.empty()) json["numbers"] = tensor.numbers;
  return json;
}

// Nothing where they are more than can be counted.
std::optional<int64_t> product_of(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

// A link could have any file of the machine read, or sent on.
void refuse_link_out(const fs::path& folder, const std::string& name) {
  std::error_code error;
  const fs::path place = fs::canonical(folder / name, error);
  if (error || place.parent_path() == fs::canonical(folder, error)) return;
  refuse(fmt::format("{} is a link to {}, out of its folder", name, place.string()), folder);
}

void check(const Manifest& manifest, const fs::path& folder) {
  for (const ShardFile& file : manifest.files) {
    if (!is_plain_name(file.name)) {
      refuse_damaged(fmt::format("'{}' is not the name of a shard file", file.name), folder / "manifest.json");
    }
    refuse_link_out(folder, file.name);
    std::error_code error;
    const uintmax_t bytes = fs::file_size(folder / file.name, error);
    if (error && manifest.node_local) continue;  // another host's
    if (error) refuse_damaged(fmt::format("the shard file {} is missing", file.name), folder);
    if (bytes != file.sum.bytes) {
      refuse_damaged(fmt::format("the shard file {} has {} bytes instead of {}", file.name, bytes, file.sum.bytes),
                     folder);
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    const std::string wrong = why_not_whole(tensor, manifest.files.size());
    if (!wrong.empty()) refuse_damaged(fmt::format("'{}' is not whole: {}", name, wrong), folder / "manifest.json");
  }
}

}  // namespace

int64_t StoredTensor::numel() const { return product_of(shape).value_or(0); }

std::string why_not_whole(const StoredTensor& tensor, size_t files) {
  const std::optional<int64_t> numel = product_of(tensor.shape);
  if (!numel) return "its shape is impossible";
  if (!tensor.folded.empty() && !layout::is_fold(tensor.folded, tensor.shape)) return "its fold is not of its shape";
  std::vector<layout::BoxRun> runs;
  for (const Piece& piece : tensor.pieces) {
    if (piece.file >= files) return fmt::format("it lies in file {} of {}", piece.file, files);
    runs.push_back(piece.at);
  }
  if (*numel == 0 && runs.empty()) return "";
  return layout::why_not_covered(tensor.cut_shape(), runs);
}

nlohmann::json to_json(const std::map<std::string, StoredTensor>& tensors) {
  json object = json::object();
  for (const auto& [name, tensor] : tensors) object[name] = json(json_of(tensor));
  return object;
}

std::map<std::string, StoredTensor> tensors_of(const nlohmann::json& object) {
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, value] : object.items()) tensors.emplace(name, tensor_of(value));
  return tensors;
}

std::string shard_name(int rank, int world_size) {
  return fmt::format("shard-{:05}-of-{:05}.safetensors", rank, world_size);
}

std::string piece_name(const std::string& kind, const std::string& tensor) { return kind + "/" + tensor; }

std::string to_text(const Manifest& manifest) {
  ordered_json text;
  text["format"] = kFormat;
  const bool any_folded = std::any_of(manifest.tensors.begin(), manifest.tensors.end(),
                                      [](const auto& named) { return !named.second.folded.empty(); });
  text["version"] = any_folded ? kFormatVersion : kVersionWithoutFolds;  // which programs of that version read
  text["xxh3"] = kNoSum;
  text["tag"] = manifest.tag;
  text["world_size"] = manifest.world_size;
  text["mesh"] = ordered_json::array();
  for (const layout::Axis& axis : manifest.mesh) text["mesh"].push_back(ordered_json::array({axis.name, axis.size}));
  if (manifest.trainable_only) text["trainable_only"] = true;
  if (manifest.node_local) text["node_local"] = true;
  if (manifest.diverged) text["diverged"] = true;
  text["engine_state"] = manifest.engine_state;
  text["client_state"] = manifest.client_state;
  text["files"] = ordered_json::array();
  text["block_bytes"] = storage::kSumBlockBytes;
  for (const ShardFile& file : manifest.files) {
    text["files"].push_back(
        {{"name", file.name}, {"bytes", file.sum.bytes}, {"xxh3", storage::to_text(file.sum.blocks)}});
  }
  text["aliases"] = manifest.aliases;
  text["tensors"] = ordered_json::object();
  for (const auto& [name, tensor] : manifest.tensors) text["tensors"][name] = json_of(tensor);
  return with_own_sum(text.dump(1) + "\n");
}

Manifest read_manifest(const fs::path& checkpoint_folder) {
  const fs::path path = checkpoint_folder / "manifest.json";
  if (!fs::exists(path)) refuse("it has no manifest.json", checkpoint_folder);
  refuse_link_out(checkpoint_folder, "manifest.json");
  const std::string written = read_input_file(path);
  json text;
  try {
    text = parse_json(written, {.where = path.string()});
  } catch (const Error& error) {
    refuse_damaged("manifest.json is not a manifest: " + error.report().what, path);
  }
  const auto is = [&](const char* key, json::value_t type) { return text.contains(key) && text[key].type() == type; };
  if (!text.is_object() || !is("format", json::value_t::string) || text["format"] != kFormat ||
      !is("version", json::value_t::number_unsigned)) {
    refuse_damaged("manifest.json is not a manifest", path);
  }
  const auto version = text["version"].get<uint64_t>();
  if (version > kFormatVersion) {
    refuse(fmt::format("its format version is {}, but this program knows versions up to {}", version, kFormatVersion),
           path);
  }
  // Version 1 knew no checksums; a newer one does not lose them by calling itself that.
  if (version < 1 || ((version > 1 || text.contains("xxh3")) && !has_own_sum(written))) {
    refuse_damaged("manifest.json does not match its checksum", path);
  }
  Manifest manifest;
  try {
    if (version > 1 && text.at("block_bytes") != storage::kSumBlockBytes) {
      refuse(fmt::format("its checksums cover blocks of {} bytes", text.at("block_bytes").dump()), path);
    }
    manifest.trainable_only = text.value("trainable_only", false);
    manifest.node_local = text.value("node_local", false);
    manifest.diverged = text.value("diverged", false);
    manifest.tag = text.at("tag").get<std::string>();
    manifest.world_size = whole_of<int>(text.at("world_size"));
    manifest.engine_state = text.at("engine_state");
    manifest.client_state = text.at("client_state");
    manifest.aliases = text.at("aliases").get<std::map<std::string, std::string>>();
    for (const json& file : text.at("files")) {
      manifest.files.push_back(
          {file.at("name").get<std::string>(),
           {whole_of<uint64_t>(file.at("bytes")), storage::blocks_of(file.value("xxh3", std::string()))}});
    }
    manifest.mesh = {{layout::kShardAxis, manifest.world_size}};
    if (version > 2) manifest.mesh.clear();
    for (const json& axis : text.value("mesh", json::array())) {
      manifest.mesh.push_back({axis.at(0).get<std::string>(), whole_of<int>(axis.at(1))});
    }
    manifest.tensors = tensors_of(text.at("tensors"));
  } catch (const json::exception& error) {
    refuse_damaged(std::string("manifest.json is not usable: ") + error.what(), path);
  } catch (const std::out_of_range& error) {
    refuse_damaged(std::string("manifest.json is not usable: ") + error.what(), path);
  }
  check(manifest, checkpoint_folder);
  return manifest;
}

void check_tag(const std::string& tag, const fs::path& where) {
  if (is_plain_name(tag)) return;
  throw Error(ErrorKind::kData, {fmt::format("'{}' is not the name of a checkpoint", tag.substr(0, kLongestName)),
                                 where.string(), "use the name of a folder there"});
}

std::string read_tag(const fs::path& path) {
  if (!fs::is_regular_file(path)) return "";
  constexpr uint64_t kMostBytes = 4096;
  std::string tag = read_input_file(path, ErrorKind::kData, kMostBytes);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ')) tag.pop_back();
  return tag;
}

std::string read_latest(const fs::path& folder) { return read_tag(folder / "latest"); }

fs::path resolve(const fs::path& path) {
  if (fs::exists(path / "manifest.json")) return path;
  const std::string tag = read_latest(path);
  if (tag.empty()) {
    throw Error(ErrorKind::kData, {"there is no Tessera checkpoint here: neither manifest.json nor latest",
                                   path.string(), "name a checkpoint's folder or the folder that holds checkpoints"});
  }
  check_tag(tag, path / "latest");
  return path / tag;
}

}  // namespace tessera::checkpoint

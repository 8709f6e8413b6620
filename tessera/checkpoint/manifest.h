// What a checkpoint holds, by name and shape, and where: manifest.json. It knows no ranks: a tensor is a list of
// pieces, each a run of elements of a box of it, somewhere in a shard file. docs/checkpoint-format.md has the grammar.
//
//   global_step30/
//     manifest.json
//     shard-00000-of-00002.safetensors     "weight/<name>", "exp_avg/<name>", …: flat pieces; "rank/<name>": of one
//     rank shard-00001-of-00002.safetensors
//   latest                                 the tag of the newest whole checkpoint
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/layout/box.h"
#include "tessera/layout/mesh_shape.h"
#include "tessera/storage/file_sum.h"

namespace tessera::checkpoint {

// 1: without checksums; 2: every box is the whole tensor; 3: no tensor is folded, and written where none is
inline constexpr int kFormatVersion = 4;
inline constexpr const char* kWeight =
    "weight";  // the kind under which weights are stored, beside the optimizer's states

// Tensors of a shard file that are no parts of the model: a program's, in the file of the rank that leads, and a
// rank's.
inline constexpr const char* kShared = "shared";
inline constexpr const char* kOfRank = "rank";

struct Piece {
  size_t file = 0;    // index into Manifest::files
  layout::BoxRun at;  // which elements of the global tensor
};

struct StoredTensor {
  std::vector<int64_t> shape;      // of the global tensor
  std::vector<int64_t> folded{};   // as the boxes count its dimensions; empty: as `shape` (layout::ParamSpec)
  std::vector<std::string> kinds;  // kWeight and the optimizer's states; each kind is stored in the same pieces
  int64_t steps = 0;               // optimizer steps that the parameter has seen
  std::map<std::string, double> numbers = {};  // what else the optimizer keeps for the parameter
  std::vector<Piece> pieces;                   // in any order, covering all elements once

  int64_t numel() const;
  const std::vector<int64_t>& cut_shape() const { return folded.empty() ? shape : folded; }
};

struct ShardFile {
  std::string name;
  storage::FileSum sum;  // version 1 has no checksums: no blocks
};

struct Manifest {
  std::string tag;
  int world_size = 1;
  std::vector<layout::Axis> mesh;  // of the ranks that saved it
  bool trainable_only = false;     // frozen parameters are not stored
  bool node_local = false;         // a host has the shard files of its own ranks only
  bool diverged = false;           // SaveOptions::diverged
  std::vector<ShardFile> files;
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> aliases;  // other name of a shared parameter -> the name in `tensors`
  nlohmann::json engine_state;
  nlohmann::json client_state;
};

std::string to_text(const Manifest& manifest);

// The tensors alone, as one rank tells another of them.
nlohmann::json to_json(const std::map<std::string, StoredTensor>& tensors);
std::map<std::string, StoredTensor> tensors_of(const nlohmann::json& json);

// Empty where the pieces hold every element of the tensor once, in files that there are; else what is wrong.
std::string why_not_whole(const StoredTensor& tensor, size_t files);

// Reads <folder>/manifest.json and checks that it is what was written, that every shard file is there with its size,
// and every tensor covered. The files' checksums are checked by whoever reads them. ErrorKind::kData names what is
// missing, torn, altered or in a newer format.
Manifest read_manifest(const std::filesystem::path& checkpoint_folder);

// "shard-00000-of-00002.safetensors"
std::string shard_name(int rank, int world_size);

// The name of a piece inside its shard file.
std::string piece_name(const std::string& kind, const std::string& tensor);

// ErrorKind::kData, with `where` the tag was found, for one that could lead out of its folder.
void check_tag(const std::string& tag, const std::filesystem::path& where);

// The tag in a file such as <folder>/latest; empty when there is no such file.
std::string read_tag(const std::filesystem::path& path);

// <folder>/latest; empty when there is none.
std::string read_latest(const std::filesystem::path& folder);

// The checkpoint's own folder: `path` itself, or what its `latest` names. ErrorKind::kData where there is none,
// or as check_tag.
std::filesystem::path resolve(const std::filesystem::path& path);

}  // namespace tessera::checkpoint

#include "tessera/checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/checkpoint/publish.h"
#include "tessera/storage/atomic_dir.h"
#include "tessera/storage/safetensors.h"

namespace tessera::checkpoint {
namespace fs = std::filesystem;

namespace {

struct Entry {
  std::string name;
  std::string kind;
};

[[noreturn]] void refuse(const std::string& what, const fs::path& where) {
  throw Error(ErrorKind::kData, {what, where.string(), "use another copy of what it is made from"});
}

std::map<std::string, StoredTensor> stored_tensors(const WholeCheckpoint& made) {
  std::map<std::string, StoredTensor> tensors;
  for (const WholeTensor& tensor : made.tensors) {
    StoredTensor stored{.shape = tensor.shape, .kinds = {}, .steps = tensor.steps, .pieces = {}};
    for (const auto& [kind, dtype] : tensor.kinds) stored.kinds.push_back(kind);
    if (stored.numel() > 0) stored.pieces = {{0, {layout::Box::whole(tensor.shape), {0, stored.numel()}}}};
    const std::string wrong = why_not_whole(stored, 1);
    if (!wrong.empty()) refuse(fmt::format("'{}' cannot be stored: {}", tensor.name, wrong), made.folder);
    if (!tensors.emplace(tensor.name, std::move(stored)).second) {
      refuse(fmt::format("there are two tensors named '{}'", tensor.name), made.folder);
    }
  }
  return tensors;
}

// In the order in which a rank writes: kind by kind.
std::vector<Entry> entries_of(const WholeCheckpoint& made, std::vector<storage::PlannedTensor>& plan) {
  std::vector<std::string> kinds;
  for (const WholeTensor& tensor : made.tensors) {
    for (const auto& [kind, dtype] : tensor.kinds) {
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
  }
  std::vector<Entry> entries;
  for (const std::string& kind : kinds) {
    for (const WholeTensor& tensor : made.tensors) {
      const int64_t numel = StoredTensor{.shape = tensor.shape, .kinds = {}, .pieces = {}}.numel();
      for (const auto& [own, dtype] : tensor.kinds) {
        if (own != kind || numel == 0) continue;
        entries.push_back({tensor.name, kind});
        plan.push_back({piece_name(kind, tensor.name), dtype, {numel}});
      }
    }
  }
  return entries;
}

}  // namespace

fs::path write_checkpoint(const WholeCheckpoint& made,
                          const std::function<at::Tensor(const std::string&, const std::string&)>& read) {
  check_new_tag(made.facts.tag);
  const fs::path final_folder = made.folder / made.facts.tag;
  require_new(final_folder);
  Manifest manifest = made.facts;
  manifest.world_size = 1;
  manifest.mesh = {{layout::kShardAxis, 1}};
  manifest.tensors = stored_tensors(made);
  std::vector<storage::PlannedTensor> plan;
  const std::vector<Entry> entries = entries_of(made, plan);
  for (const auto& [name, tensor] : made.shared_tensors) {
    plan.push_back({piece_name(kShared, name), tensor.scalar_type(), tensor.sizes().vec()});
  }
  storage::create_aside(final_folder);
  try {
    const std::string shard = shard_name(0, 1);
    storage::SafetensorsWriter writer((storage::aside_of(final_folder) / shard).string(), plan);
    for (size_t index = 0; index < entries.size(); ++index) {
      const auto& [name, kind] = entries[index];
      const at::Tensor tensor = read(name, kind);
      if (tensor.scalar_type() != plan[index].dtype || tensor.numel() != plan[index].shape.front()) {
        refuse(fmt::format("'{}' of '{}' has other elements than its size and dtype tell", kind, name), made.folder);
      }
      writer.add(tensor);
    }
    for (const auto& [name, tensor] : made.shared_tensors) writer.add(tensor);
    manifest.files = {{shard, writer.finish()}};
    publish_checkpoint(made.folder, manifest, /*sets_latest=*/true);
  } catch (...) {
    storage::abandon(final_folder);
    throw;
  }
  return final_folder;
}

}  // namespace tessera::checkpoint

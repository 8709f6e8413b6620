#include "tessera/checkpoint/tensor_source.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

constexpr int64_t kChunk = 1 << 20;  // elements that are converted at a time

// The same elements, as a run of a box of the tensor in another shape. Nothing where they are no box of it: parts are,
// in the shape in which they were cut, and the whole is in any.
std::optional<layout::BoxRun> in_shape(const layout::BoxRun& run, const std::vector<int64_t>& its_shape,
                                       const std::vector<int64_t>& shape) {
  if (its_shape == shape) return run;
  if (run.box == layout::Box::whole(its_shape)) return layout::BoxRun{layout::Box::whole(shape), run.run};
  return std::nullopt;
}

}  // namespace

TensorSource::TensorSource(std::filesystem::path folder, const Manifest& manifest)
    : folder_(std::move(folder)), manifest_(manifest) {}

bool TensorSource::is_here(const ShardFile& file) const {
  return !manifest_.node_local || std::filesystem::exists(folder_ / file.name);
}

TensorSource::Shard& TensorSource::shard(size_t file) {
  auto& shard = shards_[file];
  if (shard) return *shard;
  if (file >= manifest_.files.size()) {
    throw Error(ErrorKind::kData, {fmt::format("the checkpoint has no file of rank {}", file), folder_.string(),
                                   "name an earlier checkpoint in the same folder"});
  }
  const ShardFile& stored = manifest_.files[file];
  const std::string path = (folder_ / stored.name).string();
  if (!is_here(stored)) {
    throw Error(ErrorKind::kData,
                {"the shard file is on another host's disk", path,
                 "resume with the same ranks on the same hosts, or gather the checkpoint's files in one folder"});
  }
  {
    storage::CheckedFile bytes(path, stored.sum);
    std::array<char, 8> prefix;  // checks the block before the header is read
    bytes.read(0, std::min<uint64_t>(prefix.size(), stored.sum.bytes), prefix.data());
  }
  shard.reset(new Shard{storage::SafetensorsFile(path), storage::CheckedFile(path, stored.sum)});
  return *shard;
}

const storage::TensorEntry& TensorSource::entry(Shard& shard, const std::string& name, int64_t numel) const {
  const auto found = shard.header.entries().find(name);
  if (found == shard.header.entries().end() || found->second.numel() != numel) {
    throw Error(ErrorKind::kData, {"the shard file does not hold '" + name + "' as its manifest says",
                                   shard.header.path(), "name an earlier checkpoint in the same folder"});
  }
  return found->second;
}

void TensorSource::read_entry(Shard& shard, const storage::TensorEntry& entry, int64_t first, at::Tensor into) {
  const auto size = static_cast<int64_t>(c10::elementSize(entry.dtype));
  const auto place = [&](int64_t element) {
    return shard.header.data_begin() + entry.begin + static_cast<uint64_t>((first + element) * size);
  };
  if (into.scalar_type() == entry.dtype && into.is_contiguous() && into.device().is_cpu()) {
    return shard.bytes.read(place(0), into.nbytes(), into.mutable_data_ptr());
  }
  const at::Tensor chunk = at::empty({std::min(kChunk, into.numel())}, entry.dtype);
  for (int64_t at = 0; at < into.numel(); at += kChunk) {
    const at::Tensor part = chunk.narrow(0, 0, std::min(kChunk, into.numel() - at));
    shard.bytes.read(place(at), part.nbytes(), part.mutable_data_ptr());
    into.narrow(0, at, part.numel()).copy_(part);
  }
}

void TensorSource::read(const std::string& tensor, const std::string& kind, const std::vector<int64_t>& shape,
                        const layout::BoxRun& wanted, at::Tensor into) {
  const StoredTensor& all = manifest_.tensors.at(tensor);
  const std::vector<int64_t>& common_shape = all.folded.empty() ? shape : all.folded;
  const auto wanted_there = in_shape(wanted, shape, common_shape);
  for (const auto& [file, stored] : all.pieces) {
    const auto stored_there = in_shape(stored, all.cut_shape(), common_shape);
    if (!wanted_there || !stored_there) {
      throw Error(ErrorKind::kData,
                  {fmt::format("the parts of '{}' are cut otherwise than this run cuts them", tensor), folder_.string(),
                   "save it from one rank of the model axes, and resume from that"});
    }
    const auto read_common = [&, file = file, run = stored.run](const layout::CommonRun& common) {
      Shard& from = shard(file);
      read_entry(from, entry(from, piece_name(kind, tensor), run.numel()), common.first_in_a - run.begin,
                 into.narrow(0, common.first_in_b - wanted.run.begin, common.numel));
    };
    layout::for_each_common_run(*stored_there, *wanted_there, read_common);
  }
}

void TensorSource::read(const std::string& tensor, const std::string& kind, int64_t first, at::Tensor into) {
  const std::vector<int64_t>& shape = manifest_.tensors.at(tensor).shape;
  read(tensor, kind, shape, {layout::Box::whole(shape), {first, first + into.numel()}}, into);
}

const storage::TensorEntry& TensorSource::first_entry(const std::string& tensor, const std::string& kind) {
  const Piece& piece = manifest_.tensors.at(tensor).pieces.front();
  return entry(shard(piece.file), piece_name(kind, tensor), piece.at.run.numel());
}

TensorSource::Place TensorSource::place(const std::string& tensor, const std::string& kind) {
  const auto& pieces = manifest_.tensors.at(tensor).pieces;
  if (pieces.empty()) return {0, 0};
  return {pieces.front().file, first_entry(tensor, kind).begin};
}

at::ScalarType TensorSource::dtype(const std::string& tensor, const std::string& kind) {
  if (manifest_.tensors.at(tensor).pieces.empty()) return at::kFloat;
  return first_entry(tensor, kind).dtype;
}

TensorMap TensorSource::tensors_of_kind(Shard& shard, const char* kind) {
  TensorMap tensors;
  const std::string prefix = piece_name(kind, "");
  for (const auto& [name, entry] : shard.header.entries()) {
    if (!name.starts_with(prefix)) continue;
    const at::Tensor value = at::empty({entry.numel()}, entry.dtype);
    read_entry(shard, entry, 0, value);
    tensors[name.substr(prefix.size())] = value.view(entry.shape);
  }
  return tensors;
}

// On each host the first rank leads.
TensorMap TensorSource::shared_tensors() {
  const auto& files = manifest_.files;
  const auto found = std::find_if(files.begin(), files.end(), [this](const ShardFile& file) { return is_here(file); });
  return tensors_of_kind(shard(found == files.end() ? 0 : static_cast<size_t>(found - files.begin())), kShared);
}

TensorMap TensorSource::rank_tensors(int rank) { return tensors_of_kind(shard(static_cast<size_t>(rank)), kOfRank); }

}  // namespace tessera::checkpoint

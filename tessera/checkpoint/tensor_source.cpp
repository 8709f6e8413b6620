#include "tessera/checkpoint/tensor_source.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/storage/safetensors.h"

namespace tessera::checkpoint {

TensorSource::TensorSource(std::filesystem::path folder, const Manifest& manifest)
    : folder_(std::move(folder)), manifest_(manifest) {}

TensorSource::~TensorSource() = default;

const storage::SafetensorsFile& TensorSource::file(size_t index) {
  auto& file = files_[index];
  if (!file) file = std::make_unique<storage::SafetensorsFile>((folder_ / manifest_.files[index].name).string());
  return *file;
}

void TensorSource::read(const std::string& tensor, const std::string& kind, int64_t first, at::Tensor into) {
  const StoredTensor& stored = manifest_.tensors.at(tensor);
  const std::string name = piece_name(kind, tensor);
  const int64_t end = first + into.numel();
  for (const Piece& piece : stored.pieces) {
    const int64_t begin = std::max(first, piece.first);
    const int64_t stop = std::min(end, piece.first + piece.numel);
    if (begin >= stop) continue;
    const storage::SafetensorsFile& shard = file(piece.file);
    const auto entry = shard.entries().find(name);
    if (entry == shard.entries().end() || entry->second.numel() != piece.numel) {
      throw Error(ErrorKind::kData, {"the shard file does not hold '" + name + "' as its manifest says", shard.path(),
                                     "name an earlier checkpoint of the same folder"});
    }
    into.narrow(0, begin - first, stop - begin).copy_(shard.range(name, begin - piece.first, stop - begin));
  }
}

}  // namespace tessera::checkpoint

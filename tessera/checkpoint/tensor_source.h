// Reads runs of elements of a checkpoint's tensors, whichever shard files they lie in, and checks every block that it
// touches. It holds a few blocks of each open file, never a tensor. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/storage/checked_file.h"
#include "tessera/storage/safetensors.h"

namespace tessera::checkpoint {

class TensorSource {
 public:
  // Borrows the manifest.
  TensorSource(std::filesystem::path folder, const Manifest& manifest);

  // into (flat, any floating dtype) = these elements of that kind of the tensor, whichever boxes it is stored in.
  // `shape`: as the wanted box counts the tensor's dimensions; the stored ones may count them otherwise where one of
  // the two is the whole. ErrorKind::kData names a shard file that is damaged or not what the manifest says.
  void read(const std::string& tensor, const std::string& kind, const std::vector<int64_t>& shape,
            const layout::BoxRun& wanted, at::Tensor into);

  // … elements [first, first + into.numel()) of the whole tensor, flattened.
  void read(const std::string& tensor, const std::string& kind, int64_t first, at::Tensor into);

  // Where a kind of the tensor begins: file, and byte of its data. Tensors sort by it as they were written.
  using Place = std::pair<size_t, uint64_t>;
  Place place(const std::string& tensor, const std::string& kind);

  // In which dtype the kind is stored; fp32 for a tensor without elements.
  at::ScalarType dtype(const std::string& tensor, const std::string& kind);

  // Those that a program gave for every rank, and those that were one rank's own, by name. ErrorKind::kData where that
  // rank has no file.
  TensorMap shared_tensors();
  TensorMap rank_tensors(int rank);

 private:
  struct Shard {
    storage::SafetensorsFile header;
    storage::CheckedFile bytes;
  };

  Shard& shard(size_t file);
  bool is_here(const ShardFile& file) const;  // not on another host's disk
  TensorMap tensors_of_kind(Shard& shard, const char* kind);
  const storage::TensorEntry& entry(Shard& shard, const std::string& name, int64_t numel) const;
  const storage::TensorEntry& first_entry(const std::string& tensor, const std::string& kind);
  void read_entry(Shard& shard, const storage::TensorEntry& entry, int64_t first, at::Tensor into);

  std::filesystem::path folder_;
  const Manifest& manifest_;
  std::map<size_t, std::unique_ptr<Shard>> shards_;
};

}  // namespace tessera::checkpoint

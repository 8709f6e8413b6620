// Reads runs of elements of a checkpoint's tensors, whichever shard files they lie in. Files are mapped once and stay
// open. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "tessera/checkpoint/manifest.h"

namespace tessera::storage {
class SafetensorsFile;
}

namespace tessera::checkpoint {

class TensorSource {
 public:
  // Borrows the manifest.
  TensorSource(std::filesystem::path folder, const Manifest& manifest);
  ~TensorSource();

  // into (flat, any floating dtype) = elements [first, first + into.numel()) of that kind of the tensor.
  void read(const std::string& tensor, const std::string& kind, int64_t first, at::Tensor into);

  const storage::SafetensorsFile& file(size_t index);

 private:
  std::filesystem::path folder_;
  const Manifest& manifest_;
  std::map<size_t, std::unique_ptr<storage::SafetensorsFile>> files_;
};

}  // namespace tessera::checkpoint

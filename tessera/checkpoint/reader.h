// A checkpoint opened for reading: what its manifest says, and its tensors whole, one at a time. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

class CheckpointReader {
 public:
  // A checkpoint's own folder, or the folder of checkpoints: what its `latest` names. ErrorKind::kData where there is
  // none, or it is damaged as far as the manifest tells.
  explicit CheckpointReader(const std::filesystem::path& path);
  CheckpointReader(const CheckpointReader&) = delete;  // the source borrows the manifest
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  TensorSource& source() { return source_; }

  // Of the global shape, in the dtype in which it is stored. ErrorKind::kUsage for a name that the checkpoint has not,
  // kData for damage.
  at::Tensor tensor(const std::string& name, const std::string& kind);

  // The stored tensors in the order in which they were written: the model's, where one rank wrote. `trained`: only
  // those with elements for which the optimizer keeps states; where it keeps none, all with elements.
  std::vector<std::string> names_as_written(bool trained);

 private:
  std::filesystem::path folder_;
  Manifest manifest_;
  TensorSource source_;
};

}  // namespace tessera::checkpoint

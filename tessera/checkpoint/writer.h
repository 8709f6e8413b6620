// A checkpoint that one process writes of tensors that it has from elsewhere, as an import has: whole ones, one at a
// time. It is the same in every way as one that a single rank saves.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {

struct WholeTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<std::pair<std::string, at::ScalarType>> kinds;  // kWeight and the optimizer's states
  int64_t steps = 0;
};

struct WholeCheckpoint {
  std::filesystem::path folder;      // gets <tag> and `latest`
  Manifest facts;                    // tag, states, aliases; its tensors and files are made here
  std::vector<WholeTensor> tensors;  // in the model's order
  TensorMap shared_tensors = {};     // beside the client state
};

// `read` gives a kind of a tensor when its turn has come, of any shape with as many elements. Returns <folder>/<tag>,
// which appears whole or not at all, also when `read` throws. ErrorKind::kUsage where there is such a checkpoint or the
// tag cannot be one, kData for tensors that are not as announced, kMachine when the disk refuses.
std::filesystem::path write_checkpoint(
    const WholeCheckpoint& made,
    const std::function<at::Tensor(const std::string& name, const std::string& kind)>& read);

}  // namespace tessera::checkpoint

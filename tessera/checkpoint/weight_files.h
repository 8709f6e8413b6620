// A model's weights as files of Hugging Face's layout, one tensor in memory at a time:
//
//   model.safetensors                    or, larger than max_shard_bytes,
//   model-00001-of-00003.safetensors …   and model.safetensors.index.json, which says which tensor lies where
//   pytorch_model.bin …                  the same as state dicts of torch.save
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/storage/safetensors.h"

namespace tessera::checkpoint {

// "5GB", "200MB", "1000000": as transformers counts, in powers of 1000. ErrorKind::kUsage, `where` the text was found.
uint64_t shard_bytes(const std::string& text, const std::string& where);

// Writes the tensors in the order planned; `read` gives each when its turn has come. ErrorKind::kMachine as storage
// says. Returns the files and their checksums.
std::vector<ShardFile> write_weight_files(const std::filesystem::path& folder,
                                          const std::vector<storage::PlannedTensor>& plan,
                                          const std::function<at::Tensor(const std::string& name)>& read,
                                          const WeightFiles& how);

// Whether a file of this name is one of those that are written here.
bool is_weight_file(const std::string& name);

}  // namespace tessera::checkpoint

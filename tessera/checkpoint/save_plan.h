// What a save writes: this rank's part of every tensor, and the manifest of all ranks' parts.
#pragma once

#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/saver.h"
#include "tessera/storage/safetensors.h"
#include "tessera/zero/sharded_model.h"

namespace tessera::checkpoint {

struct ShardPlan {
  // A tensor of the training state, cut at the parameters' boundaries.
  struct Source {
    zero::StateTensor tensor;
    std::vector<layout::Range> cuts;
  };

  std::vector<storage::PlannedTensor> entries;  // one a cut
  std::vector<Source> sources;

  bool in_memory() const;  // all of it
};

ShardPlan plan_shard(const SaveInput& input);

// All but the tensors and the files.
Manifest plan_manifest(const SaveInput& input);

// What the ranks that share this one's units write of them: the manifest's tensors. Where ranks hold different parts of
// the model, of the units of which this is the first rank that has the same part. ErrorKind::kUsage names a parameter
// without elements.
std::map<std::string, StoredTensor> plan_tensors(const SaveInput& input);

// Adds the parts that other ranks hold. ErrorKind::kUsage names a parameter that they specify differently.
void merge_tensors(std::map<std::string, StoredTensor>& tensors, std::map<std::string, StoredTensor> others);

// ErrorKind::kUsage names a parameter of which the parts are too few or too many.
void require_whole(const std::map<std::string, StoredTensor>& tensors, size_t files);

// "12.3 MB: 4.1 MB of weights, 8.2 MB of optimizer state, in 2 files", over all ranks.
std::string describe_sizes(const SaveInput& input);

}  // namespace tessera::checkpoint

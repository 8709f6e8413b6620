// The model's weights as training computes with them (16 bits where it does so in 16 bits), in one file: gathered unit
// by unit, so that no rank ever holds more of the model than it does in a forward pass.
#pragma once

#include <filesystem>

#include "tessera/zero/sharded_model.h"

namespace tessera::checkpoint {

// Collective; rank 0 writes. `file` ends with .safetensors (shared parameters once) or .bin (a state dict of
// torch.save). It appears whole or not at all. Errors on every rank alike: ErrorKind::kUsage for another ending,
// kMachine when the disk refuses.
void save_16bit_weights(const zero::ShardedModel& model, const std::filesystem::path& file, bool exclude_frozen);

}  // namespace tessera::checkpoint

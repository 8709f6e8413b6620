// How a config.json describes rotary positions: transformers 5 writes `rope_parameters`, earlier folders have
// `rope_theta` and `rope_scaling`, whose kind is under `rope_type` or, earlier still, `type`.
#pragma once

#include <cstdint>

#include "tessera/models/model.h"
#include "tessera/nn/rotary.h"

namespace tessera::models {

// `theta`: where the file names none. ErrorKind::kData for a scaling that is not known, or one that lacks a number.
nn::RotaryOptions read_rotary(const ModelConfig& file, int64_t head_size, int64_t max_positions, double theta);

}  // namespace tessera::models

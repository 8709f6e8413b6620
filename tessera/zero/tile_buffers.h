// The buffers of one tile of swapped training state, and what is in flight in them. See state_tiles.h.
#pragma once

#include <vector>

#include "tessera/zero/state_tensor.h"

namespace tessera::zero {

struct TileBuffers {
  struct Part {
    StateTensor home;
    storage::AlignedBuffer buffer;
    storage::SwapFile::Transfer transfer = 0;
  };
  std::vector<Part> parts;  // weight, grad, compute, then the states
};

}  // namespace tessera::zero

// What a rank's training state takes, wherever it rests, and the most that the buffers take through which it comes and
// goes: they are made as they are needed and used again and again.
#pragma once

#include <cstdint>

#include "tessera/zero/sharded_model.h"

namespace tessera::zero {

struct MemoryBudget {
  Unit::Bytes state;
  int64_t buffers = 0;  // bytes, whole pages
};

// `cuts`: see StateTiles.
MemoryBudget memory_budget(const ShardedModel& model, bool cuts);

}  // namespace tessera::zero

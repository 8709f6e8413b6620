// How much memory this process has used at most.
#pragma once

#include <cstdint>

namespace tessera {

// Largest resident size so far, in bytes; 0 where the system does not tell.
int64_t peak_memory_bytes();

}  // namespace tessera

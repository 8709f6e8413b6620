// How many files and connections this process may have open.
#pragma once

#include <cstdint>

namespace tessera {

// Raises the process's own limit as far as that is needed and allowed. ErrorKind::kMachine: that is not enough.
void require_open_files(uint64_t count);

}  // namespace tessera

#include "tessera/base/peak_memory.h"

#include "tessera/base/host_memory.h"

namespace tessera {

int64_t peak_memory_bytes() { return static_cast<int64_t>(number_after("/proc/self/status", "VmHWM:") * 1024); }

}  // namespace tessera

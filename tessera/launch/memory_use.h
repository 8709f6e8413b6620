// How much memory a process holds, from /proc; base/host_memory.h says how much there is. In bytes; 0 where the machine
// does not report it.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace tessera::launch {

struct MemoryUse {
  uint64_t resident_bytes = 0;
  uint64_t peak_resident_bytes = 0;
};

// Of the process or of whichever descendant holds most: a rank may be a shell, and what runs out of memory is a child
// of it. Only children of a process's first thread are looked at. Zeros once the process has ended: ask before.
MemoryUse memory_use(pid_t pid);

// Kills by the kernel's out-of-memory killer so far: of processes in our control group (version 2), where it counts
// them; else on the whole machine.
uint64_t out_of_memory_kills();

}  // namespace tessera::launch

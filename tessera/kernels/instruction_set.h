// For which instructions the loops of this room, and those of others that are marked TESSERA_EVERY_CPU, run here.
#pragma once

namespace tessera::kernels {

// "avx512f", "avx2" or "default": of the versions that the compiler made, the one that the loader picks on this
// machine.
const char* instruction_set();

}  // namespace tessera::kernels

#include "tessera/kernels/instruction_set.h"

#include "tessera/kernels/every_cpu.h"

namespace tessera::kernels {

// A version cannot tell its own name, so this asks what the loader asked.
const char* instruction_set() {
#if defined(TESSERA_X86) && !defined(TESSERA_ONE_CPU)
  if (__builtin_cpu_supports("avx512f")) return "avx512f";
  if (__builtin_cpu_supports("avx2")) return "avx2";
#endif
  return "default";
}

}  // namespace tessera::kernels

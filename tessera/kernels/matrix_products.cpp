#include "tessera/kernels/matrix_products.h"

#include <ATen/Version.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace tessera::kernels {
namespace {

bool has_avx512() {
  static const bool has = at::get_cpu_capability() == "AVX512";
  return has;
}

bool has_fp16_instructions() {
#ifdef __x86_64__
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned int kAvx512Fp16 = 1u << 23;  // of EDX, leaf 7: Intel's manual, CPUID
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kAvx512Fp16) != 0;
#else
  return false;
#endif
}

}  // namespace

bool has_fast_products(at::ScalarType dtype) {
  static const bool has_fast_fp16 = has_avx512() && has_fp16_instructions();
  if (dtype == at::kBFloat16) return has_avx512();
  if (dtype == at::kHalf) return has_fast_fp16;
  return true;
}

}  // namespace tessera::kernels

#include "tessera/kernels/float_blocks.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/kernels/every_cpu.h"

#ifdef TESSERA_X86
#include <immintrin.h>
#endif

namespace tessera::kernels {
namespace {

TESSERA_EVERY_CPU
void widen_bf16(const c10::BFloat16* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]);
}

TESSERA_EVERY_CPU
void narrow_bf16(const float* in, c10::BFloat16* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<c10::BFloat16>(in[i]);
}

// Compilers do not vectorise LibTorch's conversions of fp16, and never store past the caches, so these use the
// instructions that every CPU with AVX2 has.
#ifdef TESSERA_X86
__attribute__((target("avx2,f16c"))) void widen_fp16_f16c(const c10::Half* in, float* out, int64_t count) {
  for (; count >= 8; count -= 8, in += 8, out += 8) {
    _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in))));
  }
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]);
}

__attribute__((target("avx2,f16c"))) void narrow_fp16_f16c(const float* in, c10::Half* out, int64_t count) {
  for (; count >= 8; count -= 8, in += 8, out += 8) {
    const __m128i narrow = _mm256_cvtps_ph(_mm256_loadu_ps(in), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), narrow);
  }
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<c10::Half>(in[i]);
}

// Eight bf16 in the low halves of 32 bits, rounded to the nearest, ties to even.
__attribute__((target("avx2"))) inline __m256i rounded_to_bf16(const float* in) {
  const __m256 value = _mm256_loadu_ps(in);
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7fc0), nan);
}

// Past the caches. `out`: 32-byte aligned.
__attribute__((target("avx2"))) void stream_bf16_avx2(const float* in, c10::BFloat16* out, int64_t count) {
  for (; count >= 16; count -= 16, in += 16, out += 16) {
    const __m256i mixed = _mm256_packus_epi32(rounded_to_bf16(in), rounded_to_bf16(in + 8));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(mixed, 0xd8));
  }
  narrow_bf16(in, out, count);
}

__attribute__((target("avx2,f16c"))) void stream_fp16_f16c(const float* in, c10::Half* out, int64_t count) {
  for (; count >= 8; count -= 8, in += 8, out += 8) {
    const __m128i narrow = _mm256_cvtps_ph(_mm256_loadu_ps(in), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_stream_si128(reinterpret_cast<__m128i*>(out), narrow);
  }
  narrow_fp16_f16c(in, out, count);
}

__attribute__((target("avx2"))) void stream_fp32_avx2(const float* in, float* out, int64_t count) {
  for (; count >= 8; count -= 8, in += 8, out += 8) _mm256_stream_ps(out, _mm256_loadu_ps(in));
  std::copy(in, in + count, out);
}

void fence() { _mm_sfence(); }

bool has_f16c() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}
#else
bool has_f16c() { return false; }
void widen_fp16_f16c(const c10::Half*, float*, int64_t) {}
void narrow_fp16_f16c(const float*, c10::Half*, int64_t) {}
void stream_fp16_f16c(const float*, c10::Half*, int64_t) {}
void stream_bf16_avx2(const float*, c10::BFloat16*, int64_t) {}
void stream_fp32_avx2(const float*, float*, int64_t) {}
void fence() {}
#endif

void widen_fp16(const c10::Half* in, float* out, int64_t count) {
  if (has_f16c()) return widen_fp16_f16c(in, out, count);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]);
}

void narrow_fp16(const float* in, c10::Half* out, int64_t count) {
  if (has_f16c()) return narrow_fp16_f16c(in, out, count);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<c10::Half>(in[i]);
}

}  // namespace

FloatBlocks::FloatBlocks(const at::Tensor& tensor)
    : dtype_(tensor.scalar_type()), data_(static_cast<char*>(tensor.data_ptr())), size_(tensor.element_size()) {
  TESSERA_INVARIANT(tensor.is_contiguous());
  TESSERA_INVARIANT(holds(dtype_));
}

bool FloatBlocks::holds(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

float* FloatBlocks::widened(int64_t first, int64_t count, float* buffer) const {
  char* const at = data_ + first * size_;
  if (dtype_ == at::kFloat) return reinterpret_cast<float*>(at);
  if (dtype_ == at::kBFloat16) widen_bf16(reinterpret_cast<const c10::BFloat16*>(at), buffer, count);
  if (dtype_ == at::kHalf) widen_fp16(reinterpret_cast<const c10::Half*>(at), buffer, count);
  return buffer;
}

void FloatBlocks::narrow(int64_t first, int64_t count, const float* values) const {
  char* const at = data_ + first * size_;
  if (dtype_ == at::kBFloat16) narrow_bf16(values, reinterpret_cast<c10::BFloat16*>(at), count);
  if (dtype_ == at::kHalf) narrow_fp16(values, reinterpret_cast<c10::Half*>(at), count);
  if (dtype_ == at::kFloat && values != reinterpret_cast<float*>(at)) {
    std::copy(values, values + count, reinterpret_cast<float*>(at));
  }
}

void FloatBlocks::stream(int64_t first, int64_t count, const float* values) const {
  char* const at = data_ + first * size_;
  const bool aligned = reinterpret_cast<uintptr_t>(at) % 32 == 0;
  if (!aligned || !has_f16c()) return narrow(first, count, values);
  if (dtype_ == at::kFloat) stream_fp32_avx2(values, reinterpret_cast<float*>(at), count);
  if (dtype_ == at::kBFloat16) stream_bf16_avx2(values, reinterpret_cast<c10::BFloat16*>(at), count);
  if (dtype_ == at::kHalf) stream_fp16_f16c(values, reinterpret_cast<c10::Half*>(at), count);
}

void FloatBlocks::finish_streams() { fence(); }

}  // namespace tessera::kernels

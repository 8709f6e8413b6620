#include "tessera/optim/adam_kernel.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/base/error.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

// The compiler makes a version of the function for each instruction set, and the loader picks one.
#if defined(__x86_64__) && defined(__GNUC__)
#define TESSERA_X86
#define TESSERA_EVERY_CPU __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define TESSERA_EVERY_CPU
#endif

namespace tessera::optim {
namespace {

constexpr int64_t kBlock = 256;  // elements; larger ones were slower, for all that four of 2048 fit the first cache
constexpr int64_t kBlocksAThread = 64;  // at least, for a thread to be worth its start

struct Factors {
  float grad_factor, beta1, beta2, eps, l2_decay, keep, step_size, root_factor;
};

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

// Streamed stores may pass later ones; after this they are seen before them.
void finish_streams() { _mm_sfence(); }

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
void finish_streams() {}
#endif

void widen_fp16(const c10::Half* in, float* out, int64_t count) {
  if (has_f16c()) return widen_fp16_f16c(in, out, count);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]);
}

void narrow_fp16(const float* in, c10::Half* out, int64_t count) {
  if (has_f16c()) return narrow_fp16_f16c(in, out, count);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<c10::Half>(in[i]);
}

TESSERA_EVERY_CPU
void update_block(const Factors& f, const float* __restrict__ grad, float* __restrict__ weight, float* __restrict__ m,
                  float* __restrict__ v, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = grad[i] * f.grad_factor + f.l2_decay * weight[i];
    m[i] = m[i] + (1 - f.beta1) * (g - m[i]);
    v[i] = f.beta2 * v[i] + (1 - f.beta2) * g * g;
    const float denominator = std::sqrt(v[i]) * f.root_factor + f.eps;
    weight[i] = f.keep * weight[i] - f.step_size * m[i] / denominator;
  }
}

// A tensor's elements as fp32, a block at a time: the tensor's own memory, or a widened copy.
class Blocks {
 public:
  explicit Blocks(const at::Tensor& tensor)
      : dtype_(tensor.scalar_type()), data_(static_cast<char*>(tensor.data_ptr())), size_(tensor.element_size()) {
    TESSERA_INVARIANT(tensor.is_contiguous());
    TESSERA_INVARIANT(dtype_ == at::kFloat || dtype_ == at::kBFloat16 || dtype_ == at::kHalf);
  }

  float* widened(int64_t first, int64_t count, float* buffer) const {
    char* const at = data_ + first * size_;
    if (dtype_ == at::kFloat) return reinterpret_cast<float*>(at);
    if (dtype_ == at::kBFloat16) widen_bf16(reinterpret_cast<const c10::BFloat16*>(at), buffer, count);
    if (dtype_ == at::kHalf) widen_fp16(reinterpret_cast<const c10::Half*>(at), buffer, count);
    return buffer;
  }

  void narrow(int64_t first, int64_t count, const float* values) const {
    char* const at = data_ + first * size_;
    if (dtype_ == at::kBFloat16) narrow_bf16(values, reinterpret_cast<c10::BFloat16*>(at), count);
    if (dtype_ == at::kHalf) narrow_fp16(values, reinterpret_cast<c10::Half*>(at), count);
    if (dtype_ == at::kFloat && values != reinterpret_cast<float*>(at)) {
      std::copy(values, values + count, reinterpret_cast<float*>(at));
    }
  }

  // The same bits past the caches, for what nobody reads before the next forward pass.
  void stream(int64_t first, int64_t count, const float* values) const {
    char* const at = data_ + first * size_;
    const bool aligned = reinterpret_cast<uintptr_t>(at) % 32 == 0;
    if (dtype_ == at::kFloat || !aligned || !has_f16c()) return narrow(first, count, values);
    if (dtype_ == at::kBFloat16) stream_bf16_avx2(values, reinterpret_cast<c10::BFloat16*>(at), count);
    if (dtype_ == at::kHalf) stream_fp16_f16c(values, reinterpret_cast<c10::Half*>(at), count);
  }

 private:
  at::ScalarType dtype_;
  char* data_;
  int64_t size_;
};

}  // namespace

void adam_kernel(const AdamKernelStep& step, const at::Tensor& grad, at::Tensor& weight, at::Tensor& exp_avg,
                 at::Tensor& exp_avg_sq, at::Tensor& compute) {
  const ParamGroup& group = step.group;
  const bool decoupled = step.decoupled_decay;
  const Factors factors{.grad_factor = static_cast<float>(1 / step.grad_divisor),
                        .beta1 = static_cast<float>(group.beta1),
                        .beta2 = static_cast<float>(group.beta2),
                        .eps = static_cast<float>(group.eps),
                        .l2_decay = static_cast<float>(decoupled ? 0 : group.weight_decay),
                        .keep = static_cast<float>(decoupled ? 1 - group.lr * group.weight_decay : 1),
                        .step_size = static_cast<float>(group.lr / step.correction1),
                        .root_factor = static_cast<float>(1 / std::sqrt(step.correction2))};
  const Blocks grads(grad), weights(weight), ms(exp_avg), vs(exp_avg_sq);
  const auto computes = compute.defined() ? std::optional<Blocks>(compute) : std::nullopt;
  const int64_t numel = grad.numel();
  at::parallel_for(0, (numel + kBlock - 1) / kBlock, kBlocksAThread, [&](int64_t begin, int64_t end) {
    alignas(64) std::array<std::array<float, kBlock>, 4> buffers;
    for (int64_t first = begin * kBlock; first < std::min(numel, end * kBlock); first += kBlock) {
      const int64_t count = std::min(kBlock, numel - first);
      const float* const g = grads.widened(first, count, buffers[0].data());
      float* const w = weights.widened(first, count, buffers[1].data());
      float* const m = ms.widened(first, count, buffers[2].data());
      float* const v = vs.widened(first, count, buffers[3].data());
      update_block(factors, g, w, m, v, count);
      weights.narrow(first, count, w);
      ms.narrow(first, count, m);
      vs.narrow(first, count, v);
      if (computes) computes->stream(first, count, w);
    }
    finish_streams();
  });
}

const char* adam_kernel_instructions() {
#ifdef TESSERA_X86
  if (__builtin_cpu_supports("avx512f")) return "AVX-512";
  if (__builtin_cpu_supports("avx2")) return "AVX2";
#endif
  return "portable";
}

}  // namespace tessera::optim

#include "tessera/optim/adam_kernel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/kernels/every_cpu.h"
#include "tessera/kernels/float_blocks.h"

namespace tessera::optim {
namespace {

using kernels::FloatBlocks;

constexpr int64_t kBlock = 256;  // elements; larger ones were slower, for all that four of 2048 fit the first cache
constexpr int64_t kBlocksAThread = 64;  // at least, for a thread to be worth its start

struct Factors {
  float grad_factor, beta1, beta2, eps, l2_decay, keep, step_size, root_factor;
};

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
  const FloatBlocks grads(grad), weights(weight), ms(exp_avg), vs(exp_avg_sq);
  const auto computes = compute.defined() ? std::optional<FloatBlocks>(compute) : std::nullopt;
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
    FloatBlocks::finish_streams();
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

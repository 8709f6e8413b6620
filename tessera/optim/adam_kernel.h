// Adam's step in one pass over memory, for tensors of any floating dtypes: gradient in, unscaled and clipped; moments
// and master weight updated; the new weight out in the compute dtype as well. LibTorch's fused operators, which Adam
// uses where all is fp32, would need a pass to widen the gradient and another to round the weight.
//
// Each element is computed in fp32, by the same operations whatever its neighbours, its place in the shard, the number
// of threads and the instruction set (chosen at run time: AVX-512, AVX2, or what every CPU has), so every ZeRO stage
// and every machine gets the same bits. Products and sums are not fused.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

struct AdamKernelStep {
  const ParamGroup& group;
  bool decoupled_decay = true;
  double correction1 = 1;  // 1 - beta1^t, or 1 without bias correction
  double correction2 = 1;  // 1 - beta2^t, or 1
  double grad_divisor = 1;
};

// All tensors: flat, contiguous, on the CPU, the same numel; fp32, bf16 or fp16. `compute` may be undefined. Rounds to
// nearest, ties to even.
void adam_kernel(const AdamKernelStep& step, const at::Tensor& grad, at::Tensor& weight, at::Tensor& exp_avg,
                 at::Tensor& exp_avg_sq, at::Tensor& compute);

// "AVX-512", "AVX2" or "portable": what adam_kernel runs on here.
const char* adam_kernel_instructions();

}  // namespace tessera::optim

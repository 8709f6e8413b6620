// Clipping by the global L2 norm of all gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::optim {

// Sum of the squares of a flat fp32, bf16 or fp16 tensor, in fp64. The order of additions depends on the numel alone,
// not on threads, so the same shard gives the same bits on every rank and at every stage. On a device, LibTorch
// computes it in its own order, and this waits for it.
double sum_of_squares(const at::Tensor& flat);

// The same over several tensors, added up in turn; of those on a device, there, until somebody asks.
class SumOfSquares {
 public:
  void add(const at::Tensor& flat);
  void add(const SumOfSquares& other);

  double value() const;  // waits for the device

 private:
  double on_host_ = 0;
  at::Tensor on_device_;  // fp64, a scalar
};

// What to divide gradients by so that their norm becomes at most max_norm: max(1, (norm + 1e-6) / max_norm), as
// DeepSpeed does; 1 when max_norm is 0 (no clipping).
double clip_divisor(double norm, double max_norm);

// What to multiply by for the same, as DeepSpeed's functions on tensors do: min(1, max_norm / (norm + epsilon)),
// rounded as there. On the device and in the dtype of the norm.
at::Tensor clip_factor(const at::Tensor& norm, double max_norm, double epsilon);

}  // namespace tessera::optim

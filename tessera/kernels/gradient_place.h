// Where a parameter's gradient is wanted: whoever takes gradients as they arrive can say so through the hook that
// autograd runs after it, and the product that makes a weight's gradient then writes it there (as Megatron-LM's
// gradient accumulation fusion does), instead of a tensor of its own that is copied or added.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function_hook.h>

namespace tessera::kernels {

// Called from autograd's backward, as the hook is.
class GradientTaker : public torch::autograd::PostAccumulateGradHook {
 public:
  struct Place {
    at::Tensor values;  // flat, of the parameter's elements; undefined: there is none
    bool adds = false;  // there is a gradient already: add to it. Else what is there means nothing
  };
  virtual Place place() = 0;

  // The place has the gradient. May release the parameter's memory. Autograd calls the hook all the same, with no
  // gradient in the parameter.
  virtual void taken() = 0;

  // Hooks that it has itself among those that autograd runs before it adds a gradient.
  virtual int hooks_before() const { return 0; }

  // The one that takes the gradients of this leaf; null: none, or somebody else has hooks that are to see them.
  static GradientTaker* of(const at::Tensor& parameter);
};

// The gradient of a weight, left (rows, n) transposed times right (rows, k), to its place: (n, k) or, where
// `transposed`, (k, n). For fp32 on one device; false: nothing was done, because nobody said where, the dtypes are
// others, or gradients of gradients are recorded.
bool write_weight_gradient(const at::Tensor& weight, bool transposed, const at::Tensor& left, const at::Tensor& right);

}  // namespace tessera::kernels

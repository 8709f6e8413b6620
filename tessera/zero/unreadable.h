// Tensors with a shape and no bytes. Whoever reads or writes one, an operator of LibTorch's or torch::save, gets a
// c10::Error (in Python a RuntimeError) with the given sentences instead of zeros, NaN or a crash; its shape and dtype
// may be asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"

namespace tessera::zero {

at::Tensor unreadable(at::IntArrayRef shape, const at::TensorOptions& options, const ErrorReport& report);

bool is_unreadable(const at::Tensor& tensor);

}  // namespace tessera::zero

// out = scale * (parts[0] + parts[1] + …), added in the order given, in fp32 whatever the parts' dtype (in fp64 for
// fp64), and rounded once. This order is what makes every ZeRO stage give the same bits. See Note [Same bits at every
// stage].
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::comm {

// All tensors: contiguous, on one device, one numel. The parts have one floating dtype of fp32, bf16, fp16, fp64; `out`
// has the same, or one of the two is fp32. `out` may be one of the parts.
void ordered_sum(const std::vector<at::Tensor>& parts, double scale, at::Tensor& out);

}  // namespace tessera::comm

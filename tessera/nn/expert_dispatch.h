// Tokens on their way to their experts and back.
//
//   sorted by expert → all-to-all: each expert's to the rank that has it → the experts → all-to-all → in order again,
//   weighted and added up
//
// However much that gives an expert to do, it takes all (dropless), unless the router says that one takes a token no
// more (nn/capacity_gate.h). An expert without tokens runs on none, so every rank runs the same layers and every expert
// has a gradient. Rows travel in the tensors' dtype; sums are in an order that does not change.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/nn/expert_axis.h"
#include "tessera/nn/router.h"

namespace tessera::nn {

// What an expert of this rank, counted among its own, makes of its tokens: (rows, width) -> the same. Rows may be 0.
using RunExpert = std::function<at::Tensor(int64_t expert, const at::Tensor& rows)>;

// tokens (count, width), which may be none, of which each has gone through its experts; one whose number is `experts`
// takes nothing. With gradients. Every rank of the axis calls it for the same layers in the same order.
at::Tensor through_experts(const at::Tensor& tokens, const Routing& routing, int64_t experts, const ExpertAxis& axis,
                           const RunExpert& run);

// What the experts of this rank make of tokens in order of the experts, so many for each: (rows, width) -> the same.
// Rows may be 0.
using RunExperts = std::function<at::Tensor(const at::Tensor& rows, const std::vector<int64_t>& of_experts)>;

// The same for experts that run together, as those whose weights are one tensor do.
at::Tensor through_experts_at_once(const at::Tensor& tokens, const Routing& routing, int64_t experts,
                                   const ExpertAxis& axis, const RunExperts& run);

}  // namespace tessera::nn

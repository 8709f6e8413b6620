#include "tessera/nn/own_tokens.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/layout/range.h"
#include "tessera/nn/kept_value.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::nn {
namespace {

int64_t own_rows(const TensorAxis& axis, int64_t tokens) { return layout::ceil_div(tokens, axis.size()); }

at::Tensor all_rows(const TensorAxis& axis, const at::Tensor& own, int64_t tokens) {
  const at::NoGradGuard no_grad;
  const int64_t rows = own.size(0), width = own.size(1), numel = own.numel();
  at::Tensor all = axis.group().empty(numel * axis.size(), own.options().requires_grad(false));
  const at::Tensor place = all.narrow(0, axis.rank() * numel, numel);
  place.view({rows, width}).copy_(own);
  axis.group().start_all_gather(all, place, axis.name()).finish_for(all);
  return all.view({rows * axis.size(), width}).narrow(0, 0, tokens);
}

// rows: (tokens, width).
at::Tensor sum_of_own(const TensorAxis& axis, const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  const int64_t tokens = rows.size(0), width = rows.size(1), own = own_rows(axis, tokens);
  const at::TensorOptions options = rows.options().requires_grad(false);
  const at::Tensor full = axis.group().empty(own * axis.size() * width, options).view({own * axis.size(), width});
  full.narrow(0, 0, tokens).copy_(rows);
  full.narrow(0, tokens, full.size(0) - tokens).zero_();
  at::Tensor sum = at::empty({own, width}, options);
  axis.group().start_reduce_scatter(sum.view({-1}), full.view({-1}), /*scale=*/1, axis.name()).finish_for(sum);
  return sum;
}

// rows: (tokens, …).
at::Tensor part_of_own(const TensorAxis& axis, const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> shape = rows.sizes().vec();
  shape.front() = own_rows(axis, rows.size(0));
  const int64_t begin = std::min(axis.rank() * shape.front(), rows.size(0));
  const int64_t count = std::min(shape.front(), rows.size(0) - begin);
  at::Tensor own = at::zeros(shape, rows.options().requires_grad(false));
  own.narrow(0, 0, count).copy_(rows.narrow(0, begin, count));
  return own;
}

// What becomes of the ranks' gradients of all tokens.
enum class Gradients { kSum, kAlike };

class AllTokens : public torch::autograd::Function<AllTokens> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& own, const TensorAxis& axis,
                            const TokenShape& tokens, Gradients gradients) {
    context->saved_data["axis"] = keep(axis);
    context->saved_data["sum"] = gradients == Gradients::kSum;
    return all_rows(axis, own, tokens.count()).view({tokens.batch, tokens.length, own.size(1)});
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto axis = kept<TensorAxis>(context->saved_data["axis"]);
    const at::Tensor rows = grads[0].flatten(0, -2);
    return {context->saved_data["sum"].toBool() ? sum_of_own(axis, rows) : part_of_own(axis, rows), {}, {}, {}};
  }
};

class SumOfOwnTokens : public torch::autograd::Function<SumOfOwnTokens> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const TensorAxis& axis) {
    context->saved_data["axis"] = keep(axis);
    context->saved_data["shape"] = x.sizes().vec();
    return sum_of_own(axis, x.flatten(0, -2));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto axis = kept<TensorAxis>(context->saved_data["axis"]);
    const std::vector<int64_t> shape = context->saved_data["shape"].toIntVector();
    return {all_rows(axis, grads[0], c10::multiply_integers(shape) / shape.back()).view(shape), {}};
  }
};

}  // namespace

TokenShape tokens_of(const at::Tensor& ids) { return {.batch = ids.size(0), .length = ids.size(1)}; }

at::Tensor into_cut_layers(const TensorAxis& axis, const at::Tensor& own, const TokenShape& tokens) {
  return axis.size() > 1 ? AllTokens::apply(own, axis, tokens, Gradients::kSum) : own;
}

at::Tensor out_of_cut_layers(const TensorAxis& axis, const at::Tensor& x) {
  return axis.size() > 1 ? SumOfOwnTokens::apply(x, axis) : x;
}

at::Tensor all_tokens(const TensorAxis& axis, const at::Tensor& own, const TokenShape& tokens) {
  return axis.size() > 1 ? AllTokens::apply(own, axis, tokens, Gradients::kAlike) : own;
}

at::Tensor own_tokens(const TensorAxis& axis, const at::Tensor& ids, const TokenShape& tokens) {
  if (axis.size() == 1) return ids;
  return part_of_own(axis, ids.expand({tokens.batch, tokens.length}).reshape({tokens.count()}));
}

// All ranks draw what at::dropout draws of the whole, so that their random states stay the same.
at::Tensor dropout_of_own(const TensorAxis& axis, const at::Tensor& own, double probability, bool training,
                          const TokenShape& tokens) {
  const bool drops_some = training && probability > 0 && probability < 1;
  if (axis.size() == 1 || !drops_some) return at::dropout(own, probability, training);
  const at::TensorOptions options = own.options().requires_grad(false);
  const at::Tensor kept_of_all = at::empty({tokens.count(), own.size(1)}, options).bernoulli_(1 - probability);
  return own * part_of_own(axis, kept_of_all).div_(1 - probability);
}

}  // namespace tessera::nn

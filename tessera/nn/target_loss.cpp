#include "tessera/nn/target_loss.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/kernels/matrix_products.h"

namespace tessera::nn {
namespace {

constexpr int64_t kLogitsOfPiece = 8 << 20;  // elements; 32 MiB
constexpr int64_t kLeastRows = 64;           // fewer make slow matrix products

// In fp32 where this CPU has no fast products of its dtype.
at::Tensor for_products(const at::Tensor& tensor) {
  const bool is_slow = tensor.is_cpu() && !kernels::has_fast_products(tensor.scalar_type());
  return is_slow ? tensor.to(at::kFloat) : tensor;
}

// The output layer over all rows that have a label, a piece of them at a time.
class TargetRows {
 public:
  TargetRows(const at::Tensor& hidden, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
             const at::Tensor& labels)
      : hidden_(hidden), labels_(labels), weight_(for_products(weight)) {
    if (bias) bias_ = bias->to(weight_.scalar_type());
  }

  // Those of the loss, in fp32 where several pieces are added up; each undefined where nobody asks for it.
  struct Gradients {
    bool of_hidden = false, of_weight = false, of_bias = false;
    at::Tensor hidden, weight, bias;
  };

  at::Tensor loss_sum(Gradients& gradients) const {
    const int64_t rows = hidden_.size(0);
    const int64_t at_once = target_rows_at_once(weight_.size(0));
    at::Tensor loss = at::zeros({}, hidden_.options().dtype(at::kFloat));
    if (gradients.of_hidden) gradients.hidden = at::empty(hidden_.sizes(), hidden_.options());
    if (rows == 0) {
      if (gradients.of_weight) gradients.weight = at::zeros_like(weight_);
      if (gradients.of_bias) gradients.bias = at::zeros_like(*bias_);
    }
    for (int64_t first = 0; first < rows; first += at_once) {
      loss += add_piece(first, std::min(at_once, rows - first), gradients);
    }
    return loss;
  }

 private:
  at::Tensor add_piece(int64_t first, int64_t count, Gradients& gradients) const {
    const at::Tensor hidden = hidden_.narrow(0, first, count).to(weight_.scalar_type());
    const at::Tensor labels = labels_.narrow(0, first, count).unsqueeze(1);
    at::Tensor logits = at::linear(hidden, weight_, bias_).to(at::kFloat);
    const at::Tensor normalizer = at::logsumexp(logits, {1}, /*keepdim=*/true);
    const at::Tensor loss = (normalizer - logits.gather(1, labels)).sum();
    if (!gradients.of_hidden && !gradients.of_weight && !gradients.of_bias) return loss;
    logits.sub_(normalizer).exp_();  // the probabilities; less 1 at the labels, the loss's gradient
    logits.scatter_add_(1, labels, at::scalar_tensor(-1, logits.options()).expand(labels.sizes()));
    const at::Tensor grad = logits.to(weight_.scalar_type());
    if (gradients.of_hidden) gradients.hidden.narrow(0, first, count).copy_(at::mm(grad, weight_));
    if (gradients.of_weight) add_weight_gradient(gradients.weight, grad, hidden);
    if (gradients.of_bias) {
      const at::Tensor sum = logits.sum(0);
      gradients.bias = gradients.bias.defined() ? gradients.bias.add_(sum) : sum;
    }
    return loss;
  }

  static void add_weight_gradient(at::Tensor& total, const at::Tensor& grad, const at::Tensor& hidden) {
    if (!total.defined()) {
      total = at::mm(grad.t(), hidden);
      return;
    }
    if (grad.scalar_type() == at::kFloat) {
      total.addmm_(grad.t(), hidden);
      return;
    }
    total = total.to(at::kFloat);
    const int64_t vocab = total.size(0), block = 4096;
    for (int64_t first = 0; first < vocab; first += block) {
      const int64_t count = std::min(block, vocab - first);
      total.narrow(0, first, count).add_(at::mm(grad.narrow(1, first, count).t(), hidden));
    }
  }

  at::Tensor hidden_, labels_, weight_;
  std::optional<at::Tensor> bias_;
};

class TargetLoss : public torch::autograd::Function<TargetLoss> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias, const at::Tensor& labels) {
    TargetRows::Gradients gradients{.of_hidden = context->needs_input_grad(0),
                                    .of_weight = context->needs_input_grad(1),
                                    .of_bias = bias && context->needs_input_grad(2)};
    const at::Tensor loss = TargetRows(hidden, weight, bias, labels).loss_sum(gradients);
    context->saved_data["gradients"] =
        std::vector<at::Tensor>{gradients.hidden, rounded(gradients.weight, weight.scalar_type()),
                                bias ? rounded(gradients.bias, bias->scalar_type()) : at::Tensor()};
    return loss;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->saved_data.find("gradients");
    if (saved == context->saved_data.end()) {
      throw Error(ErrorKind::kUsage, {"backward ran through this loss before", "nn::target_loss_sum",
                                      "compute the loss again for another backward"});
    }
    torch::autograd::variable_list gradients = saved->second.toTensorVector();
    context->saved_data.erase(saved);
    for (at::Tensor& gradient : gradients) {
      if (gradient.defined()) gradient.mul_(grads[0]);
    }
    gradients.emplace_back();  // the labels'
    return gradients;
  }

 private:
  static at::Tensor rounded(const at::Tensor& gradient, at::ScalarType dtype) {
    return gradient.defined() ? gradient.to(dtype) : gradient;
  }
};

}  // namespace

int64_t target_rows_at_once(int64_t vocab) { return std::max(kLeastRows, kLogitsOfPiece / vocab); }

LabelledRows labelled_rows(const at::Tensor& hidden, const at::Tensor& labels) {
  const at::Tensor flat_labels = labels.reshape({-1});
  const at::Tensor targets = at::nonzero(flat_labels != kNoTarget).squeeze(1);
  return {.hidden = hidden.reshape({-1, hidden.size(-1)}).index_select(0, targets),
          .labels = flat_labels.index_select(0, targets)};
}

at::Tensor loss_sum(const LabelledRows& rows, const at::Tensor& weight, const at::Tensor& bias) {
  const std::optional<at::Tensor> with_bias = bias.defined() ? std::optional(bias) : std::nullopt;
  if (at::GradMode::is_enabled()) return TargetLoss::apply(rows.hidden, weight, with_bias, rows.labels);
  TargetRows::Gradients none;
  return TargetRows(rows.hidden, weight, with_bias, rows.labels).loss_sum(none);
}

at::Tensor target_loss_sum(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                           const at::Tensor& labels) {
  return loss_sum(labelled_rows(hidden, labels), weight, bias);
}

}  // namespace tessera::nn

#include "tessera/nn/target_loss.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_copy.h>
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
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/kernels/matrix_products.h"
#include "tessera/nn/kept_value.h"

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
             const at::Tensor& labels, const CutVocabulary& vocabulary)
      : hidden_(hidden), labels_(labels), weight_(for_products(weight)), vocabulary_(vocabulary) {
    if (bias) bias_ = bias->to(weight_.scalar_type());
  }

  // Those of the loss, in fp32 where several pieces are added up; each undefined where nobody asks for it.
  struct Gradients {
    bool of_hidden = false, of_weight = false, of_bias = false;
    at::Tensor hidden, weight, bias;

    bool wanted() const { return of_hidden || of_weight || of_bias; }
  };

  at::Tensor loss_sum(Gradients& gradients) const {
    at::Tensor loss = at::zeros({}, hidden_.options().dtype(at::kFloat));
    begin(gradients);
    for_each_piece([&](int64_t first, int64_t count) {
      Piece piece = piece_of(first, count);
      loss += (piece.normalizer - piece.of_label).sum();
      if (gradients.wanted()) add_gradients(piece, first, gradients);
    });
    return loss;
  }

  // Of each row's label: (rows) in fp32.
  at::Tensor log_probs() const {
    const at::Tensor all = at::empty({hidden_.size(0)}, hidden_.options().dtype(at::kFloat));
    for_each_piece([&](int64_t first, int64_t count) {
      const Piece piece = piece_of(first, count);
      all.narrow(0, first, count).copy_((piece.of_label - piece.normalizer).squeeze(1));
    });
    return all;
  }

  // Those of a scalar in which the rows' log_probs() have these gradients: (rows) in fp32.
  void log_prob_gradients(const at::Tensor& of_log_probs, Gradients& gradients) const {
    begin(gradients);
    for_each_piece([&](int64_t first, int64_t count) {
      Piece piece = piece_of(first, count);
      piece.factor = of_log_probs.narrow(0, first, count).unsqueeze(1).neg();
      add_gradients(piece, first, gradients);
    });
  }

 private:
  struct Piece {
    at::Tensor hidden, labels;      // (count, width), (count, 1)
    at::Tensor is_here;             // whether this rank has the label's word: (count, 1); undefined: all are here
    at::Tensor logits, normalizer;  // (count, this rank's words), (count, 1); in fp32
    at::Tensor of_label;            // its logit: (count, 1)
    at::Tensor factor;              // of each row's loss in what the gradients are of: (count, 1); undefined: 1
  };

  template <class Function>
  void for_each_piece(const Function& function) const {
    const int64_t rows = hidden_.size(0);
    const int64_t at_once = target_rows_at_once(vocabulary_.is_cut() ? vocabulary_.words.whole() : weight_.size(0));
    for (int64_t first = 0; first < rows; first += at_once) function(first, std::min(at_once, rows - first));
  }

  void begin(Gradients& gradients) const {
    if (gradients.of_hidden) gradients.hidden = at::empty(hidden_.sizes(), hidden_.options());
    if (hidden_.size(0) > 0) return;
    if (gradients.of_weight) gradients.weight = at::zeros_like(weight_);
    if (gradients.of_bias) gradients.bias = at::zeros_like(*bias_);
  }

  Piece piece_of(int64_t first, int64_t count) const {
    Piece piece;
    piece.hidden = hidden_.narrow(0, first, count).to(weight_.scalar_type());
    piece.labels = labels_.narrow(0, first, count).unsqueeze(1);
    piece.logits = at::linear(piece.hidden, weight_, bias_).to(at::kFloat);
    piece.normalizer = at::logsumexp(piece.logits, {1}, /*keepdim=*/true);
    if (vocabulary_.is_cut()) {
      add_other_words(piece);
    } else {
      piece.of_label = piece.logits.gather(1, piece.labels);
    }
    return piece;
  }

  // Those of the other ranks: what is told of a row is the normalizer of each rank's words, and the label's logit, 0
  // where its word is another's.
  void add_other_words(Piece& piece) const {
    const CutVocabulary::Rows own = vocabulary_.own_rows(piece.labels);
    piece.is_here = own.here;
    piece.labels = own.rows;
    const at::Tensor of_label = piece.logits.gather(1, piece.labels).mul_(piece.is_here);
    const at::Tensor all = vocabulary_.axis.of_all(at::cat({piece.normalizer, of_label}, 1));  // (ranks, count, 2)
    piece.normalizer = at::logsumexp(all.select(2, 0), {0}).unsqueeze(1);
    piece.of_label = all.select(2, 1).sum(0).unsqueeze(1);
  }

  void add_gradients(Piece& piece, int64_t first, Gradients& gradients) const {
    at::Tensor& logits = piece.logits;
    logits.sub_(piece.normalizer).exp_();  // the probabilities; less 1 at the labels, the loss's gradient
    const at::Tensor less = piece.is_here.defined()
                                ? piece.is_here.to(at::kFloat).neg_()
                                : at::scalar_tensor(-1, logits.options()).expand(piece.labels.sizes());
    logits.scatter_add_(1, piece.labels, less);
    if (piece.factor.defined()) logits.mul_(piece.factor);
    const at::Tensor grad = logits.to(weight_.scalar_type());
    if (gradients.of_hidden) gradients.hidden.narrow(0, first, logits.size(0)).copy_(at::mm(grad, weight_));
    if (gradients.of_weight) add_weight_gradient(gradients.weight, grad, piece.hidden);
    if (gradients.of_bias) {
      const at::Tensor sum = logits.sum(0);
      gradients.bias = gradients.bias.defined() ? gradients.bias.add_(sum) : sum;
    }
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
  CutVocabulary vocabulary_;
};

at::Tensor rounded(const at::Tensor& gradient, at::ScalarType dtype) {
  return gradient.defined() ? gradient.to(dtype) : gradient;
}

class TargetLoss : public torch::autograd::Function<TargetLoss> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                            const CutVocabulary& vocabulary) {
    TargetRows::Gradients gradients{.of_hidden = context->needs_input_grad(0),
                                    .of_weight = context->needs_input_grad(1),
                                    .of_bias = bias && context->needs_input_grad(2)};
    const at::Tensor loss = TargetRows(hidden, weight, bias, labels, vocabulary).loss_sum(gradients);
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
    gradients.resize(5);  // none of the labels and the vocabulary
    return gradients;
  }
};

// Keeps what it was given and computes the logits again.
class TargetLogProbs : public torch::autograd::Function<TargetLogProbs> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias, const at::Tensor& labels,
                            const CutVocabulary& vocabulary) {
    context->save_for_backward({hidden, weight, labels, bias.value_or(at::Tensor())});
    context->saved_data["vocabulary"] = keep(vocabulary);
    return TargetRows(hidden, weight, bias, labels, vocabulary).log_probs();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &hidden = saved[0], &weight = saved[1], &labels = saved[2];
    const std::optional<at::Tensor> bias = saved[3].defined() ? std::optional(saved[3]) : std::nullopt;
    TargetRows::Gradients gradients{.of_hidden = context->needs_input_grad(0),
                                    .of_weight = context->needs_input_grad(1),
                                    .of_bias = bias && context->needs_input_grad(2)};
    const auto vocabulary = kept<CutVocabulary>(context->saved_data["vocabulary"]);
    TargetRows(hidden, weight, bias, labels, vocabulary).log_prob_gradients(grads[0], gradients);
    return {gradients.hidden, rounded(gradients.weight, weight.scalar_type()),
            bias ? rounded(gradients.bias, bias->scalar_type()) : at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

std::optional<at::Tensor> optional_bias(const at::Tensor& bias) {
  return bias.defined() ? std::optional(bias) : std::nullopt;
}

// Places of the labels in a flat batch.
at::Tensor target_places(const at::Tensor& flat_labels) { return at::nonzero(flat_labels != kNoTarget).squeeze(1); }

LabelledRows rows_at(const at::Tensor& places, const at::Tensor& hidden, const at::Tensor& flat_labels) {
  return {.hidden = hidden.reshape({-1, hidden.size(-1)}).index_select(0, places),
          .labels = flat_labels.index_select(0, places)};
}

}  // namespace

int64_t target_rows_at_once(int64_t vocab) { return std::max(kLeastRows, kLogitsOfPiece / vocab); }

LabelledRows labelled_rows(const at::Tensor& hidden, const at::Tensor& labels) {
  const at::Tensor flat_labels = labels.reshape({-1});
  return rows_at(target_places(flat_labels), hidden, flat_labels);
}

at::Tensor loss_sum(const LabelledRows& rows, const at::Tensor& weight, const at::Tensor& bias,
                    const CutVocabulary& vocabulary) {
  const std::optional<at::Tensor> with_bias = optional_bias(bias);
  if (at::GradMode::is_enabled()) return TargetLoss::apply(rows.hidden, weight, with_bias, rows.labels, vocabulary);
  TargetRows::Gradients none;
  return TargetRows(rows.hidden, weight, with_bias, rows.labels, vocabulary).loss_sum(none);
}

at::Tensor target_loss_sum(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                           const at::Tensor& labels, const CutVocabulary& vocabulary) {
  return loss_sum(labelled_rows(hidden, labels), weight, bias, vocabulary);
}

at::Tensor target_log_probs(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& labels, const CutVocabulary& vocabulary) {
  const at::Tensor flat_labels = labels.reshape({-1});
  const at::Tensor places = target_places(flat_labels);
  const LabelledRows rows = rows_at(places, hidden, flat_labels);
  const std::optional<at::Tensor> with_bias = optional_bias(bias);
  const at::Tensor of_labels = at::GradMode::is_enabled()
                                   ? TargetLogProbs::apply(rows.hidden, weight, with_bias, rows.labels, vocabulary)
                                   : TargetRows(rows.hidden, weight, with_bias, rows.labels, vocabulary).log_probs();
  // Not index_add, which on a GPU adds in another order each time.
  return at::zeros({flat_labels.size(0)}, of_labels.options())
      .index_copy(0, places, of_labels)
      .view(labels.sizes())
      .sum(1);
}

}  // namespace tessera::nn

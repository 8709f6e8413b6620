// The loss of a language model's output layer, without its logits ever being whole: of a large vocabulary they would
// take more memory than the model's layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/nn/vocabulary.h"

namespace tessera::nn {

inline constexpr int64_t kNoTarget = -100;  // a label that no loss counts; PyTorch's ignore_index

// The cross entropy of hidden weight^T + bias to the labels, added up over those that are not kNoTarget: a scalar in
// fp32, 0 where there are none.
//
//   hidden  (…, width), in the compute dtype     weight  (vocab, width)
//   labels  (…) int64                            bias    (vocab); undefined: none
//
// Only rows that have a label are computed, in pieces. Where gradients are recorded they are computed with the loss,
// piece by piece, as in the Liger kernels (Hsu et al. 2024): backward multiplies them, so it can run only once.
//
// Where the vocabulary is cut over a tensor axis, weight and bias are this rank's rows, hidden has come through
// axis.into_parts(), and the loss is the same on every rank: a piece costs one all-gather of two numbers a row.
at::Tensor target_loss_sum(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                           const at::Tensor& labels, const CutVocabulary& vocabulary = {});

// Its two halves, for a head that has more to do between them: the rows that have a label, (rows, width) and (rows),
// and the loss of such.
struct LabelledRows {
  at::Tensor hidden, labels;
};
LabelledRows labelled_rows(const at::Tensor& hidden, const at::Tensor& labels);
at::Tensor loss_sum(const LabelledRows& rows, const at::Tensor& weight, const at::Tensor& bias,
                    const CutVocabulary& vocabulary = {});

// The logarithms of the labels' probabilities, added up over each row of the batch: (rows) in fp32, 0 where a row has
// no label. hidden (rows, length, width), labels (rows, length); the rest as above. Where gradients are recorded,
// backward computes the logits again, piece by piece: what each row's gradient is multiplied by is known only then.
at::Tensor target_log_probs(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                            const at::Tensor& labels, const CutVocabulary& vocabulary = {});

// Rows of a piece, at most: whose logits there are at once.
int64_t target_rows_at_once(int64_t vocab);

}  // namespace tessera::nn

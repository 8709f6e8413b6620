// How well a model tells labels apart, from counts that add up over batches and ranks. With these of each label c
//
//   correct_c   rows with the label c that were given c      given_c   rows that were given c
//   labelled_c  rows with the label c
//
// the metrics are
//
//   accuracy = sum_c correct_c / sum_c labelled_c
//   F1_c     = 2 correct_c / (given_c + labelled_c)          that is, 2 TP / (2 TP + FP + FN); 0 where that is 0 / 0
//   f1       = F1_1 of two labels (binary), of more the mean of F1_c (macro) over labels that a row has or was given
//
// as scikit-learn's accuracy_score and f1_score(average="binary") and f1_score(average="macro") define them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "tessera/train/task.h"

namespace tessera::train {

// [correct | given | labelled], each by label. logits (rows, labels); labels (rows) int64. A row is given the label of
// its largest logit.
std::vector<double> label_tallies(const at::Tensor& logits, const at::Tensor& labels);

std::vector<Metric> label_metrics(size_t labels);

}  // namespace tessera::train

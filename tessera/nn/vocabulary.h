// A vocabulary cut over a tensor axis: each rank has some words' rows of the embeddings and of the output layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/nn/tensor_axis.h"

namespace tessera::nn {

// Default: of one rank, all words are here.
struct CutVocabulary {
  TensorAxis axis;
  Cut words;

  bool is_cut() const { return axis.size() > 1; }
  int64_t own_words(int64_t all) const { return is_cut() ? words.own().numel() : all; }

  // Where the vocabulary is cut: which of the ids' words this rank has, and at which of its rows; of a word that is
  // another's, some row.
  struct Rows {
    at::Tensor here, rows;  // of the ids' shape: bool, int64
  };
  Rows own_rows(const at::Tensor& ids) const;

  // Of a parameter whose first dimension is the words and whose others are `rest`.
  void specify(const std::vector<int64_t>& rest, layout::ParamSpec& spec) const;
};

// ErrorKind::kConfig where there are fewer words than ranks.
CutVocabulary cut_vocabulary(const TensorAxis& axis, int64_t words);

// Rows of weight (this rank's words, width) for ids (…) int64: (…, width). Where the vocabulary is cut, those of other
// ranks' words are 0: the sum over the ranks is each word's row, and left to the caller. The row `padding_index` gets
// no gradient (none when negative).
at::Tensor embedded(const at::Tensor& ids, const at::Tensor& weight, int64_t padding_index,
                    const CutVocabulary& vocabulary);

// hidden weight^T + bias for all words, (…, vocab), on every rank; without gradients where the vocabulary is cut.
// bias: undefined: none.
at::Tensor logits_of_words(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                           const CutVocabulary& vocabulary);

}  // namespace tessera::nn

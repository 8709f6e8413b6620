// The two ends of a language model: what its tokens become, and what it makes of the last layer's output.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "tessera/nn/layers.h"
#include "tessera/nn/tensor_axis.h"
#include "tessera/nn/unit_module.h"
#include "tessera/nn/vocabulary.h"

namespace tessera::models {

// The rows of a vocabulary, as a unit of their own; those of this rank, where it is cut.
class TokenEmbeddings : public nn::UnitModule<TokenEmbeddings>, public nn::HoldsParts {
 public:
  TokenEmbeddings(int64_t vocab_size, int64_t width, int64_t padding_index, const nn::TensorAxis& axis = {});
  at::Tensor forward(const at::Tensor& ids);  // (batch, length) int64 -> of own tokens (nn/own_tokens.h)
  void specify(const std::string& parameter, layout::ParamSpec& spec) const override;
  const nn::TensorAxis& axis() const { return vocabulary_.axis; }

  at::Tensor weight;

 private:
  int64_t padding_index_;
  nn::CutVocabulary vocabulary_;
};

// The output layer, as a unit of its own. `weight` (vocab, width), or this rank's rows: another's, or undefined: its
// own.
class LanguageHead : public nn::UnitModule<LanguageHead>, public nn::HoldsParts {
 public:
  LanguageHead(int64_t vocab_size, int64_t width, const at::Tensor& weight, const nn::TensorAxis& axis = {});
  at::Tensor forward(const at::Tensor& hidden);  // (…, width) -> logits (…, vocab)

  // hidden: of own tokens (nn/own_tokens.h); labels (batch, length) -> nn::target_loss_sum
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& labels);

  enum class Of { kRows };
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& labels, Of);  // -> nn::target_log_probs
  void specify(const std::string& parameter, layout::ParamSpec& spec) const override;

  bool has(const at::Tensor& weight) const { return weight_.is_same(weight); }
  const nn::TensorAxis& axis() const { return vocabulary_.axis; }

 private:
  at::Tensor weight_;
  nn::CutVocabulary vocabulary_;
};

}  // namespace tessera::models

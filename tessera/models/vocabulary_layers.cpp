#include "tessera/models/vocabulary_layers.h"

#include "tessera/nn/own_tokens.h"
#include "tessera/nn/target_loss.h"

namespace tessera::models {

TokenEmbeddings::TokenEmbeddings(int64_t vocab_size, int64_t width, int64_t padding_index, const nn::TensorAxis& axis)
    : padding_index_(padding_index), vocabulary_(nn::cut_vocabulary(axis.called("the embeddings"), vocab_size)) {
  weight = register_parameter("weight", nn::declared_parameter({vocabulary_.own_words(vocab_size), width}));
}

at::Tensor TokenEmbeddings::forward(const at::Tensor& ids) {
  return nn::out_of_cut_layers(vocabulary_.axis, nn::embedded(ids, weight, padding_index_, vocabulary_));
}

void TokenEmbeddings::specify(const std::string& /*parameter*/, layout::ParamSpec& spec) const {
  vocabulary_.specify({weight.size(1)}, spec);
}

LanguageHead::LanguageHead(int64_t vocab_size, int64_t width, const at::Tensor& weight, const nn::TensorAxis& axis)
    : vocabulary_(nn::cut_vocabulary(axis.called("the language head"), vocab_size)) {
  const auto own = [&] { return nn::declared_parameter({vocabulary_.own_words(vocab_size), width}); };
  weight_ = register_parameter("weight", weight.defined() ? weight : own());
}

at::Tensor LanguageHead::forward(const at::Tensor& hidden) {
  return nn::logits_of_words(hidden, weight_, {}, vocabulary_);
}

at::Tensor LanguageHead::forward(const at::Tensor& hidden, const at::Tensor& labels) {
  return nn::target_loss_sum(nn::into_cut_layers(vocabulary_.axis, hidden, nn::tokens_of(labels)), weight_, {}, labels,
                             vocabulary_);
}

at::Tensor LanguageHead::forward(const at::Tensor& hidden, const at::Tensor& labels, Of) {
  return nn::target_log_probs(nn::into_cut_layers(vocabulary_.axis, hidden, nn::tokens_of(labels)), weight_, {}, labels,
                              vocabulary_);
}

void LanguageHead::specify(const std::string& /*parameter*/, layout::ParamSpec& spec) const {
  vocabulary_.specify({weight_.size(1)}, spec);
}

}  // namespace tessera::models

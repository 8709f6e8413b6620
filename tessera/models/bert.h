// The networks of BERT's family (bert_config.h), as transformers' …ForMaskedLM and …ForSequenceClassification: the same
// parameter names, the same arithmetic.
//
// Units: the word embeddings, each encoder layer, the output layer over the vocabulary, which shares the word
// embeddings' weight. What is small, such as the other embeddings or a head for labels, belongs to the root's.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/models/bert_config.h"
#include "tessera/models/block_cut.h"
#include "tessera/models/model.h"
#include "tessera/models/sequence_classifier.h"
#include "tessera/models/vocabulary_layers.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/own_tokens.h"
#include "tessera/nn/tensor_axis.h"
#include "tessera/nn/unit_module.h"
#include "tessera/nn/vocabulary.h"

namespace tessera::models {

struct BertInput {
  at::Tensor input_ids;       // (batch, length) int64
  at::Tensor attention_mask;  // (batch, length) int64 or bool, 0 for padding; undefined: no padding
  at::Tensor token_type_ids;  // (batch, length) int64; undefined: all 0. Not looked at where the model has one type

  template <class F>
  void for_each_tensor(F f) const {
    f(input_ids);
  }
};

class BertEmbeddings : public torch::nn::Module {
 public:
  BertEmbeddings(const BertConfig& config, const nn::TensorAxis& axis);
  at::Tensor forward(const BertInput& input);  // -> of own tokens (nn/own_tokens.h)

  std::shared_ptr<TokenEmbeddings> word_embeddings;

 private:
  at::Tensor positions_of(const at::Tensor& ids) const;

  BertConfig config_;
  std::shared_ptr<nn::Embedding> position_embeddings_;
  std::shared_ptr<nn::Embedding> token_type_embeddings_;  // null without
  std::shared_ptr<nn::LayerNorm> norm_;
};

class BertLayer : public nn::UnitModule<BertLayer> {
 public:
  BertLayer(const BertConfig& config, int64_t number, const nn::TensorAxis& axis);
  // hidden: of own tokens; mask (batch, 1, 1, length) bool, true where a token may be attended; undefined: all.
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& mask, const nn::TokenShape& tokens);

 private:
  at::Tensor attend(const at::Tensor& hidden, const at::Tensor& mask, const nn::TokenShape& tokens) const;

  BertConfig config_;
  BlockCut cut_;
  nn::Activation activation_;
  std::shared_ptr<nn::Linear> query_, key_, value_, attention_output_, intermediate_, output_;
  std::shared_ptr<nn::LayerNorm> attention_norm_, output_norm_;
};

// Embeddings and layers, as modules below `root`, which outlives this.
class BertBody {
 public:
  BertBody(torch::nn::Module& root, const BertConfig& config, const nn::TensorAxis& axis);

  // -> (batch, length, hidden)
  at::Tensor encode(const BertInput& input) { return of_all(run_links(0, links(), {}, input), input); }

  // What leaves the last layer, of all tokens.
  at::Tensor of_all(const at::Tensor& own, const BertInput& input) const;

  // The embeddings and each layer, as links: what leaves those in [first, end), of what entered; of own tokens.
  size_t links() const { return layers_.size() + 1; }
  at::Tensor run_links(size_t first, size_t end, const std::vector<at::Tensor>& entering, const BertInput& input);
  std::vector<Link> links_below(const torch::nn::Module& root) const;

  const TokenEmbeddings& word_embeddings() const { return *embeddings_->word_embeddings; }
  void checkpoint_activations(bool on) { checkpoints_activations_ = on; }

 private:
  std::shared_ptr<BertEmbeddings> embeddings_;
  std::vector<std::shared_ptr<BertLayer>> layers_;
  bool checkpoints_activations_ = false;
};

class BertHead : public nn::UnitModule<BertHead>, public nn::HoldsParts {
 public:
  BertHead(torch::nn::Module& root, const BertConfig& config, const at::Tensor& word_embeddings,
           const nn::TensorAxis& axis);

  // The modules below root of which it is made.
  std::vector<std::string> paths_below(const torch::nn::Module& root) const;

  at::Tensor forward(const at::Tensor& hidden);  // (…, hidden) -> logits (…, vocab)
  // Of rows that all have a label: their loss.
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& labels);
  void specify(const std::string& parameter, layout::ParamSpec& spec) const override;

 private:
  at::Tensor transformed(const at::Tensor& hidden) const;

  nn::Activation activation_;
  std::shared_ptr<nn::Linear> dense_;
  std::shared_ptr<nn::LayerNorm> norm_;
  at::Tensor decoder_weight_;  // the word embeddings'
  at::Tensor bias_;
  nn::CutVocabulary vocabulary_;
};

// Over a tensor axis, attention is cut by heads, the feed-forward by features, the vocabulary by words; other layers
// are whole on every rank.
class BertForMaskedLM : public Network {
 public:
  explicit BertForMaskedLM(const BertConfig& config, const nn::TensorAxis& axis = {});

  // masked_loss_sum of "input_ids", "labels" and, where they are there, "attention_mask" and "token_type_ids".
  at::Tensor loss_sum(const NamedTensors& batch) override;
  std::vector<Link> links() const override;
  std::vector<at::Tensor> run_links(size_t first, size_t end, const std::vector<at::Tensor>& entering,
                                    const NamedTensors& batch) override;

  at::Tensor forward(const BertInput& input);  // -> logits (batch, length, vocab)

  // The sum of the cross entropy over the positions whose label is not -100, in fp32; labels (batch, length) int64.
  // Runs the head on those positions alone.
  at::Tensor masked_loss_sum(const BertInput& input, const at::Tensor& labels);

  const BertConfig& config() const { return config_; }

  void checkpoint_activations(bool on) override { body_.checkpoint_activations(on); }

 private:
  at::Tensor loss_of(const at::Tensor& hidden, const at::Tensor& labels);

  BertConfig config_;
  BertBody body_;
  std::shared_ptr<BertHead> head_;
};

// Labels by the first token: [CLS], <s>.
class BertForSequenceClassification : public SequenceClassifier {
 public:
  explicit BertForSequenceClassification(const BertConfig& config, const nn::TensorAxis& axis = {});

  at::Tensor logits(const NamedTensors& batch) override;
  std::vector<Link> links() const override;
  std::vector<at::Tensor> run_links(size_t first, size_t end, const std::vector<at::Tensor>& entering,
                                    const NamedTensors& batch) override;
  void checkpoint_activations(bool on) override { body_.checkpoint_activations(on); }

 private:
  at::Tensor logits_of(const at::Tensor& hidden) const;

  BertConfig config_;
  BertBody body_;
  std::shared_ptr<nn::Linear> dense_, output_;
};

// What a network of the family reads of a batch.
BertInput bert_input(const NamedTensors& batch);

}  // namespace tessera::models

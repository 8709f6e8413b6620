// BERT (Devlin et al. 2018) with its masked-language-model head, as Hugging Face's BertForMaskedLM: the same parameter
// names, the same arithmetic, config.json's keys.
//
// Units: the embeddings, each encoder layer, the head. The head's decoder shares the word embeddings' weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/models/model.h"
#include "tessera/nn/layers.h"
#include "tessera/nn/unit_module.h"

namespace tessera::models {

struct BertConfig {
  int64_t vocab_size = 30522;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;
  int64_t pad_token_id = 0;
  std::string hidden_act = "gelu";
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;
  double layer_norm_eps = 1e-12;
  double initializer_range = 0.02;
};

// From a folder's config.json; keys that are absent keep BERT's defaults. ErrorKind::kData for a config of another
// model.
BertConfig read_bert_config(const std::string& folder);

struct BertInput {
  at::Tensor input_ids;       // (batch, length) int64
  at::Tensor attention_mask;  // (batch, length) int64 or bool, 0 for padding; undefined: no padding
  at::Tensor token_type_ids;  // (batch, length) int64; undefined: all 0

  template <class F>
  void for_each_tensor(F f) const {
    f(input_ids);
  }
};

class BertEmbeddings : public nn::UnitModule<BertEmbeddings> {
 public:
  explicit BertEmbeddings(const BertConfig& config);
  at::Tensor forward(const BertInput& input);  // -> (batch, length, hidden)

  std::shared_ptr<nn::Embedding> word_embeddings;

 private:
  std::shared_ptr<nn::Embedding> position_embeddings_;
  std::shared_ptr<nn::Embedding> token_type_embeddings_;
  std::shared_ptr<nn::LayerNorm> norm_;
  double dropout_;
};

class BertLayer : public nn::UnitModule<BertLayer> {
 public:
  explicit BertLayer(const BertConfig& config);
  // hidden (batch, length, hidden); mask (batch, 1, 1, length) bool, true where a token may be attended; undefined:
  // all.
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& mask);

 private:
  at::Tensor attend(const at::Tensor& hidden, const at::Tensor& mask) const;

  BertConfig config_;
  std::shared_ptr<nn::Linear> query_, key_, value_, attention_output_, intermediate_, output_;
  std::shared_ptr<nn::LayerNorm> attention_norm_, output_norm_;
};

class BertHead : public nn::UnitModule<BertHead> {
 public:
  BertHead(const BertConfig& config, const at::Tensor& word_embeddings);
  at::Tensor forward(const at::Tensor& hidden);  // (…, hidden) -> logits (…, vocab)
  // Of rows that all have a label: their loss.
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& labels);

 private:
  at::Tensor transformed(const at::Tensor& hidden) const;

  std::string activation_;
  std::shared_ptr<nn::Linear> dense_;
  std::shared_ptr<nn::LayerNorm> norm_;
  at::Tensor decoder_weight_;  // the word embeddings'
  at::Tensor bias_;
};

class BertForMaskedLM : public Network {
 public:
  explicit BertForMaskedLM(const BertConfig& config);

  // masked_loss_sum of "input_ids", "labels" and, where they are there, "attention_mask" and "token_type_ids".
  at::Tensor loss_sum(const NamedTensors& batch) override;

  at::Tensor forward(const BertInput& input);  // -> logits (batch, length, vocab)

  // The sum of the cross entropy over the positions whose label is not -100, in fp32; labels (batch, length) int64.
  // Runs the head on those positions alone.
  at::Tensor masked_loss_sum(const BertInput& input, const at::Tensor& labels);

  const BertConfig& config() const { return config_; }

  void checkpoint_activations(bool on) override { checkpoints_activations_ = on; }

 private:
  at::Tensor encode(const BertInput& input);

  BertConfig config_;
  std::shared_ptr<BertEmbeddings> embeddings_;
  std::vector<std::shared_ptr<BertLayer>> layers_;
  std::shared_ptr<BertHead> head_;
  bool checkpoints_activations_ = false;
};

// Writes the reference's initial value of the named parameter: normal(0, initializer_range) for weights, 0 for biases
// and the padding row, 1 for norms. Depends on (seed, name) alone, so every rank and every sharding starts alike.
void initialize_bert_parameter(const BertConfig& config, uint64_t seed, const std::string& name, at::Tensor value);

}  // namespace tessera::models

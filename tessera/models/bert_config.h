// BERT's family, as transformers has it: BERT (Devlin et al. 2018), RoBERTa (Liu et al. 2019) and DistilBERT (Sanh et
// al. 2019). They are one network (bert.h) under different names, and with the differences that BertFamily lists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/models/model.h"
#include "tessera/nn/activations.h"

namespace tessera::models {

struct BertFamily {
  const char* type;        // config.json's "model_type"
  const char* class_name;  // "Bert" of BertForMaskedLM

  // config.json's names of sizes and of probabilities.
  struct Keys {
    const char *hidden_size, *num_hidden_layers, *num_attention_heads, *intermediate_size, *hidden_act;
    const char *hidden_dropout, *attention_dropout, *classifier_dropout;
  };
  Keys keys;

  // Names of modules, from the model's root; of a layer's from the layer.
  struct Layer {
    const char *query, *key, *value, *attention_output, *attention_norm, *intermediate, *output, *output_norm;
  };
  struct MaskedLmHead {
    const char *module, *dense, *norm;
    bool is_at_root;  // dense and norm lie beside the module, whose own are the output layer's weight and bias
  };
  struct LabelHead {
    const char *dense, *output;
    nn::Activation activation;  // after dense
    bool drops_first;           // dropout also before dense
  };
  const char* body;    // "bert"
  const char* layers;  // below it
  Layer layer;
  MaskedLmHead masked_lm_head;
  LabelHead label_head;

  bool has_token_types;         // which tell the texts of a pair apart
  bool counts_positions;        // of tokens that are not padding, from pad_token_id + 1 (fairseq's)
  bool drops_attention_output;  // dropout after the attention's output layer
  bool head_always_has_gelu;    // whatever hidden_act is
  double classifier_dropout;    // where config.json does not say; negative: the hidden layers' own
  int64_t vocab_size;           // this and the next two: where config.json does not say
  int64_t pad_token_id;
  int64_t num_hidden_layers;
};

// Null for a type that is none of the family.
const BertFamily* find_bert_family(const std::string& type);

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
  double classifier_dropout = 0.1;
  int64_t num_labels = 2;  // of the class for classification
  const BertFamily* family = find_bert_family("bert");

  int64_t longest_text() const;  // tokens of a sample at most
};

// Of a folder's config.json; keys that are absent keep transformers' defaults. ErrorKind::kData for a config of another
// model, or of one that is not supported.
BertConfig read_bert_config(const std::string& folder);
BertConfig read_bert_config(const ModelConfig& file);

// Writes the reference's initial value of the named parameter: normal(0, initializer_range) for weights, 0 for biases
// and the padding rows, 1 for norms. Depends on (seed, name) alone, so every rank and every sharding starts alike.
void initialize_bert_parameter(const BertConfig& config, uint64_t seed, const std::string& name, at::Tensor value);

// Whether the parameter is a norm's.
bool is_bert_norm(const std::string& name);

}  // namespace tessera::models

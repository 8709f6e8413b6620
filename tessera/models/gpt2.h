// GPT-2 (Radford et al. 2019), as transformers' GPT2LMHeadModel: the same parameter names, the same arithmetic,
// config.json's keys.
//
// A layer: h += attention(layer_norm(h)); h += project(gelu(expand(layer_norm(h)))). Positions are learned. Weights of
// the layers' matrices are (in, out), transposed to other models'.
//
// Units: the token embeddings, each layer, the output layer, which by default shares the embeddings' weight. The
// position embeddings and the last norm belong to the root.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/block_cut.h"
#include "tessera/models/causal_network.h"
#include "tessera/nn/activations.h"
#include "tessera/nn/layers.h"

namespace tessera::models {

struct Gpt2Config {
  int64_t vocab_size = 0;
  int64_t n_positions = 0;
  int64_t n_embd = 0;
  int64_t n_layer = 0;
  int64_t n_head = 0;
  int64_t n_inner = 0;
  nn::Activation activation = nullptr;
  double resid_pdrop = 0;
  double embd_pdrop = 0;
  double attn_pdrop = 0;
  double layer_norm_epsilon = 0;
  double initializer_range = 0;
  bool scale_attn_weights = true;
  bool scale_attn_by_inverse_layer_idx = false;
  bool tie_word_embeddings = true;
};

class Gpt2Layer : public nn::UnitModule<Gpt2Layer> {
 public:
  Gpt2Layer(const Gpt2Config& config, size_t number, const nn::TensorAxis& axis);
  DecoderState forward(const DecoderInput& input);

 private:
  at::Tensor attend(const at::Tensor& hidden, const DecoderInput& input) const;

  BlockCut cut_;
  Gpt2Config config_;
  double scale_;  // of query · key
  std::shared_ptr<nn::Linear> input_, output_, expand_, project_;
  std::shared_ptr<nn::LayerNorm> attention_norm_, mlp_norm_;
};

class Gpt2LMHeadModel : public CausalNetwork {
 public:
  explicit Gpt2LMHeadModel(const Gpt2Config& config, const nn::TensorAxis& axis = {});

 protected:
  size_t layers() const override { return layers_.size(); }
  at::Tensor embed(const at::Tensor& ids, const at::Tensor& positions) override;
  std::vector<nn::Rotary::Table> turns(const at::Tensor&) const override { return {}; }
  DecoderState run_layer(size_t layer, const DecoderInput& input) override { return (*layers_[layer])(input); }
  at::Tensor normalized(const at::Tensor& hidden) override { return norm_->forward(hidden); }
  LanguageHead& head() const override { return *head_; }
  const TokenEmbeddings& tokens() const override { return *tokens_; }
  const torch::nn::Module* positions() const override { return positions_.get(); }
  const torch::nn::Module& layer(size_t number) const override { return *layers_[number]; }
  const torch::nn::Module& last_norm() const override { return *norm_; }

 private:
  double dropout_;
  std::shared_ptr<TokenEmbeddings> tokens_;
  std::shared_ptr<nn::Embedding> positions_;
  std::vector<std::shared_ptr<Gpt2Layer>> layers_;
  std::shared_ptr<nn::LayerNorm> norm_;
  std::shared_ptr<LanguageHead> head_;
};

// ErrorKind::kData for a config.json that describes none.
Gpt2Config read_gpt2_config(const ModelConfig& file);

}  // namespace tessera::models

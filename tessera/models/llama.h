// Llama (Touvron et al. 2023) and the models that differ from it in a line or two, as transformers' classes for causal
// language models: the same parameter names, the same arithmetic, config.json's keys. llama.cpp has a table of the
// differences.
//
// A layer: h += attention(rms_norm(h)); h += down(silu(gate(x)) * up(x)) of x = rms_norm(h), or what experts make of x
// (feed_forward.h). Queries and keys are turned by their positions (nn/rotary.h); several heads share a key.
//
// Units: the embeddings, each layer, the output layer. The last norm belongs to the root.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/models/block_cut.h"
#include "tessera/models/causal_network.h"
#include "tessera/models/feed_forward.h"
#include "tessera/models/rms_decoder.h"
#include "tessera/nn/rotary.h"
#include "tessera/nn/tensor_axis.h"

namespace tessera::models {

struct LlamaFamily;

struct LlamaConfig {
  const LlamaFamily* family = nullptr;  // in the table, which lives for ever
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  int64_t pad_token_id = -1;  // -1: none
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  double attention_dropout = 0;
  bool tie_word_embeddings = false;
  bool input_bias = false;   // of the queries', keys' and values' matrices
  bool output_bias = false;  // of the attention's last matrix
  bool mlp_bias = false;
  std::vector<int64_t> windows;  // of each layer's attention; 0: none
  std::vector<bool> is_mixture;  // of each layer's feed-forward; empty: of none
  nn::RouterOptions router;
  nn::RouterLosses router_losses;
  int64_t expert_features = 0;         // of one
  int64_t shared_expert_features = 0;  // 0: there is none that all tokens go through
  nn::RotaryOptions rotary;
};

class LlamaLayer : public nn::UnitModule<LlamaLayer> {
 public:
  LlamaLayer(const LlamaConfig& config, size_t number, const nn::TensorAxis& axis);
  DecoderState forward(const DecoderInput& input);

  LayerExperts experts() const;

  void share_experts(const nn::ExpertAxis& axis);  // see Network; nothing happens where it has none

 private:
  AttentionHeads heads_of(const at::Tensor& hidden) const;
  at::Tensor attend(const at::Tensor& hidden, const DecoderInput& input) const;

  BlockCut cut_;
  int64_t head_size_, window_;
  double dropout_;
  std::shared_ptr<nn::Linear> query_, key_, value_, fused_, output_;  // fused_ instead of the three
  std::unique_ptr<FeedForward> feed_forward_;
  ExpertMixture* mixture_ = nullptr;                                                // the same, where it is one
  std::shared_ptr<nn::RmsNorm> attention_norm_, mlp_norm_, query_norm_, key_norm_;  // the last two may be null
};

class LlamaForCausalLM : public RmsDecoder<LlamaLayer> {
 public:
  // `axis`: over whose ranks it is cut: attention by heads, the feed-forward by features, the vocabulary by words.
  explicit LlamaForCausalLM(const LlamaConfig& config, const nn::TensorAxis& axis = {});

  bool turns_alike(int64_t one, int64_t other) const override { return rotary_.turns_alike(one, other); }
  std::vector<std::string> share_experts(const nn::ExpertAxis& axis) override;

 protected:
  std::vector<nn::Rotary::Table> turns(const at::Tensor& positions) const override {
    return {rotary_.table(positions)};
  }

  Routers routers() const override { return routers_; }
  LayerExperts experts_of(size_t layer) const override { return layers_[layer]->experts(); }

 private:
  nn::Rotary rotary_;
  Routers routers_;
};

// ErrorKind::kData for a config.json that describes none of the family.
LlamaConfig read_llama_config(const ModelConfig& file);

}  // namespace tessera::models

// Gemma 3 (Gemma team 2025), the text model, as transformers' Gemma3ForCausalLM: the same parameter names, the same
// arithmetic, config.json's keys.
//
// A layer has a norm before and after each half: h += norm(attention(norm(h))); h += norm(down(act(gate(x)) * up(x)))
// of x = norm(h), act gelu's tanh form. Norms are around one (nn::RmsNorm). Of six layers five see a window of the last
// tokens alone, and turn their queries and keys by rotary positions of their own. Embeddings are multiplied by
// sqrt(hidden size), rounded to their dtype.
//
// Units: the embeddings, each layer, the output layer. The last norm belongs to the root.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/models/block_cut.h"
#include "tessera/models/causal_network.h"
#include "tessera/models/rms_decoder.h"
#include "tessera/nn/activations.h"
#include "tessera/nn/rotary.h"

namespace tessera::models {

struct Gemma3Config {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  int64_t pad_token_id = -1;         // -1: none
  double query_pre_attn_scalar = 0;  // query · key is divided by its root
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  double attention_dropout = 0;
  bool attention_bias = false;  // of all four attention matrices
  bool tie_word_embeddings = true;
  nn::Activation activation = nullptr;
  std::vector<int64_t> windows;                 // of each layer's attention; 0: none
  nn::RotaryOptions global_turns, local_turns;  // of layers without and with a window
};

class Gemma3Layer : public nn::UnitModule<Gemma3Layer> {
 public:
  Gemma3Layer(const Gemma3Config& config, size_t number, const nn::TensorAxis& axis);
  DecoderState forward(const DecoderInput& input);

 private:
  at::Tensor attend(const at::Tensor& hidden, const DecoderInput& input) const;
  at::Tensor feed_forward(const at::Tensor& hidden, const nn::TokenShape& tokens) const;

  BlockCut cut_;
  int64_t head_size_, window_;
  double scale_;  // of query · key
  double dropout_;
  nn::Activation activation_;
  std::shared_ptr<nn::Linear> query_, key_, value_, output_;
  std::shared_ptr<nn::Linear> gate_, up_, down_;
  std::shared_ptr<nn::RmsNorm> query_norm_, key_norm_;
  std::shared_ptr<nn::RmsNorm> before_attention_, after_attention_, before_feed_forward_, after_feed_forward_;
};

class Gemma3ForCausalLM : public RmsDecoder<Gemma3Layer> {
 public:
  explicit Gemma3ForCausalLM(const Gemma3Config& config, const nn::TensorAxis& axis = {});

  bool turns_alike(int64_t one, int64_t other) const override {
    return global_turns_.turns_alike(one, other) && local_turns_.turns_alike(one, other);
  }

 protected:
  at::Tensor embed(const at::Tensor& ids, const at::Tensor& positions) override;
  std::vector<nn::Rotary::Table> turns(const at::Tensor& positions) const override;
  size_t kind_of(size_t layer) const override { return windows_[layer] > 0 ? kLocal : kGlobal; }

 private:
  static constexpr size_t kGlobal = 0, kLocal = 1;

  double root_of_width_;
  std::vector<int64_t> windows_;
  nn::Rotary global_turns_, local_turns_;
};

// ErrorKind::kData for a config.json that describes none, or that asks for what is not here: soft caps of logits,
// attention in both directions.
Gemma3Config read_gemma3_config(const ModelConfig& file);

}  // namespace tessera::models

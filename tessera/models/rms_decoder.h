// What the decoders of RMSNorm and a gated feed-forward have in common: the Llama family and Gemma 3.
#pragma once

#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/block_cut.h"
#include "tessera/models/causal_network.h"
#include "tessera/models/initial_values.h"
#include "tessera/nn/target_loss.h"

namespace tessera::models {

// `features`: of its feed-forward.
template <class Config>
BlockCut cut_of_layer(const Config& config, size_t number, const nn::TensorAxis& axis, int64_t features) {
  return BlockCut(axis, "layer " + std::to_string(number),
                  {.heads = config.num_attention_heads,
                   .key_heads = config.num_key_value_heads,
                   .head_size = config.head_dim,
                   .features = features});
}

// Of a Config with their sizes by transformers' names. Its matrices begin with normal(0, initializer_range), biases
// with 0.
template <class Config>
class RmsDecoderModel : public Model {
 public:
  explicit RmsDecoderModel(Config config) : config_(std::move(config)) {}

  void set_dropout(double probability) override { config_.attention_dropout = probability; }

  void initialize(uint64_t seed, const std::string& name, at::Tensor value) const override {
    const at::NoGradGuard no_grad;
    if (name.ends_with("bias")) {
      value.zero_();
    } else if (is_norm(name)) {
      value.fill_(first_norm());
    } else {
      draw_normal(seed, name, config_.initializer_range, value);
      if (is_embedding(name) && config_.pad_token_id >= 0) value.select(0, config_.pad_token_id).zero_();
    }
  }
  bool decays(const std::string& name) const override { return !name.ends_with("bias") && !is_norm(name); }
  std::string base_prefix() const override { return "model."; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.max_position_embeddings; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  std::optional<Architecture> architecture() const override {
    return Architecture{.layers = config_.num_hidden_layers,
                        .hidden = config_.hidden_size,
                        .heads = config_.num_attention_heads,
                        .kv_heads = config_.num_key_value_heads,
                        .head_size = config_.head_dim,
                        .ffn = config_.intermediate_size,
                        .vocab = config_.vocab_size,
                        .head_weights = config_.hidden_size * config_.vocab_size,
                        .max_positions = config_.max_position_embeddings,
                        .gated_ffn = true,
                        .logits_of_targets_only = true,
                        .logit_rows_at_once = nn::target_rows_at_once(config_.vocab_size),
                        .attention_dropout = config_.attention_dropout};
  }

 protected:
  const Config& config() const { return config_; }
  Config& config() { return config_; }
  virtual double first_norm() const = 0;  // the weight with which norms change nothing
  virtual bool is_embedding(const std::string& name) const = 0;

 private:
  static bool is_norm(const std::string& name) { return name.find("norm") != std::string::npos; }

  Config config_;
};

// The network of such layers; who derives it makes its parts, in the order of the forward pass.
template <class Layer>
class RmsDecoder : public CausalNetwork {
 protected:
  size_t layers() const override { return layers_.size(); }
  at::Tensor embed(const at::Tensor& ids, const at::Tensor& /*positions*/) override { return (*embeddings_)(ids); }
  DecoderState run_layer(size_t layer, const DecoderInput& input) override { return (*layers_[layer])(input); }
  at::Tensor normalized(const at::Tensor& hidden) override { return norm_->forward(hidden); }
  LanguageHead& head() const override { return *head_; }
  const TokenEmbeddings& tokens() const override { return *embeddings_; }
  const torch::nn::Module& layer(size_t number) const override { return *layers_[number]; }
  const torch::nn::Module& last_norm() const override { return *norm_; }

  std::shared_ptr<TokenEmbeddings> embeddings_;
  std::vector<std::shared_ptr<Layer>> layers_;
  std::shared_ptr<nn::RmsNorm> norm_;
  std::shared_ptr<LanguageHead> head_;
};

}  // namespace tessera::models

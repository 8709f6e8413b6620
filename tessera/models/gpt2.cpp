#include "tessera/models/gpt2.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <tuple>

#include "tessera/models/config_values.h"
#include "tessera/models/initial_values.h"
#include "tessera/models/models.h"
#include "tessera/nn/module_path.h"
#include "tessera/nn/own_tokens.h"
#include "tessera/nn/target_loss.h"

namespace tessera::models {
namespace {

class Gpt2 final : public Model {
 public:
  explicit Gpt2(Gpt2Config config) : config_(config) {}

  void set_dropout(double probability) override {
    config_.resid_pdrop = config_.embd_pdrop = config_.attn_pdrop = probability;
  }
  std::shared_ptr<Network> network() const override { return network_over({}); }
  std::shared_ptr<Network> network_over(const nn::TensorAxis& axis) const override {
    return std::make_shared<Gpt2LMHeadModel>(config_, axis);
  }

  // Matrices that add to the residual are smaller by the root of their number (Radford et al. 2019, section 2.3).
  void initialize(uint64_t seed, const std::string& name, at::Tensor value) const override {
    const at::NoGradGuard no_grad;
    if (name.ends_with("bias")) {
      value.zero_();
    } else if (is_norm(name)) {
      value.fill_(1);
    } else {
      const bool is_residual = name.ends_with("c_proj.weight");
      const double share = is_residual ? 1 / std::sqrt(2.0 * static_cast<double>(config_.n_layer)) : 1;
      draw_normal(seed, name, config_.initializer_range * share, value);
    }
  }
  bool decays(const std::string& name) const override { return !name.ends_with("bias") && !is_norm(name); }
  std::string base_prefix() const override { return "transformer."; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.n_positions; }
  int64_t hidden_size() const override { return config_.n_embd; }
  std::optional<Architecture> architecture() const override {
    return Architecture{.layers = config_.n_layer,
                        .hidden = config_.n_embd,
                        .heads = config_.n_head,
                        .kv_heads = config_.n_head,
                        .head_size = config_.n_embd / config_.n_head,
                        .ffn = config_.n_inner,
                        .vocab = config_.vocab_size,
                        .head_weights = config_.n_embd * config_.vocab_size,
                        .max_positions = config_.n_positions,
                        .logits_of_targets_only = true,
                        .logit_rows_at_once = nn::target_rows_at_once(config_.vocab_size),
                        .hidden_dropout = config_.resid_pdrop,
                        .attention_dropout = config_.attn_pdrop};
  }

 private:
  static bool is_norm(const std::string& name) { return name.find("ln_") != std::string::npos; }

  Gpt2Config config_;
};

}  // namespace

Gpt2Config read_gpt2_config(const ModelConfig& file) {
  const ConfigValues values(file);
  Gpt2Config config{.vocab_size = values.size("vocab_size", 50257),
                    .n_positions = values.size("n_positions", 1024),
                    .n_embd = values.size("n_embd", 768),
                    .n_layer = values.layers("n_layer", 12),
                    .n_head = values.size("n_head", 12),
                    .resid_pdrop = values.probability("resid_pdrop", 0.1),
                    .embd_pdrop = values.probability("embd_pdrop", 0.1),
                    .attn_pdrop = values.probability("attn_pdrop", 0.1),
                    .layer_norm_epsilon = values.norm_eps("layer_norm_epsilon", 1e-5),
                    .initializer_range = values.initializer_range(),
                    .scale_attn_weights = values.get("scale_attn_weights", true),
                    .scale_attn_by_inverse_layer_idx = values.get("scale_attn_by_inverse_layer_idx", false),
                    .tie_word_embeddings = values.get("tie_word_embeddings", true)};
  config.n_inner = values.size("n_inner", 4 * config.n_embd);
  if (config.n_embd % config.n_head != 0) {
    values.refuse(fmt::format("n_head, {}, does not divide n_embd, {}", config.n_head, config.n_embd),
                  "check the file, or get it again");
  }
  const auto name = values.get("activation_function", std::string("gelu_new"));
  config.activation = nn::find_activation(name);
  if (config.activation == nullptr) {
    values.refuse(fmt::format("activation_function, the activation '{:.100}', is not supported", name),
                  fmt::format("use one of these: {}", fmt::join(nn::known_activations(), ", ")));
  }
  if (values.get("add_cross_attention", false)) {
    values.refuse("add_cross_attention is true, and GPT-2 with an encoder is not supported", "use a model without");
  }
  return config;
}

ModelType gpt2_model_type() {
  return {
      .classes = {{.head = "CausalLM", .name = "GPT2LMHeadModel", .weights_from = {"GPT2LMHeadModel", "GPT2Model"}}},
      .read = [](const ModelConfig& config, const ModelClass&) -> std::unique_ptr<Model> {
        return std::make_unique<Gpt2>(read_gpt2_config(config));
      }};
}

Gpt2Layer::Gpt2Layer(const Gpt2Config& config, size_t number, const nn::TensorAxis& axis)
    : cut_(axis, fmt::format("layer {}", number),
           {.heads = config.n_head,
            .key_heads = config.n_head,
            .head_size = config.n_embd / config.n_head,
            .features = config.n_inner,
            .form = nn::WeightForm::kInOut}),
      config_(config) {
  const double head_size = static_cast<double>(config.n_embd) / static_cast<double>(config.n_head);
  scale_ = config.scale_attn_weights ? 1 / std::sqrt(head_size) : 1;
  if (config.scale_attn_by_inverse_layer_idx) scale_ /= static_cast<double>(number + 1);
  const auto norm = [&](const char* path, const nn::TensorAxis& by) {
    return nn::add(*this, path, std::make_shared<nn::LayerNorm>(config.n_embd, config.layer_norm_epsilon, by));
  };
  constexpr bool kBias = true;
  attention_norm_ = norm("ln_1", cut_.attention());
  input_ = nn::add(*this, "attn.c_attn", cut_.queries_keys_values(config.n_embd, kBias));
  output_ = nn::add(*this, "attn.c_proj", cut_.attended(config.n_embd, kBias));
  mlp_norm_ = norm("ln_2", cut_.feed_forward());
  expand_ = nn::add(*this, "mlp.c_fc", cut_.inner(config.n_embd, kBias));
  project_ = nn::add(*this, "mlp.c_proj", cut_.outer(config.n_embd, kBias));
}

at::Tensor Gpt2Layer::attend(const at::Tensor& hidden, const DecoderInput& input) const {
  const at::Tensor all = input_->forward(hidden);
  const int64_t head_size = config_.n_embd / config_.n_head, width = cut_.heads() * head_size;
  const auto heads = [&](int64_t part) {
    return all.narrow(2, part * width, width).view({hidden.size(0), hidden.size(1), cut_.heads(), head_size});
  };
  at::Tensor key = heads(1), value = heads(2);
  if (input.cache != nullptr) std::tie(key, value) = input.cache->append(key, value);
  return decoder_attention(
      {heads(0), key, value}, input, /*window=*/0,
      {.scale = scale_, .dropout = is_training() ? config_.attn_pdrop : 0, .heads = &cut_.attention()});
}

DecoderState Gpt2Layer::forward(const DecoderInput& input) {
  const auto dropout = [&](const at::Tensor& x) {
    return nn::dropout_of_own(cut_.feed_forward(), x, config_.resid_pdrop, is_training(), input.tokens);
  };
  const at::Tensor entering =
      nn::into_cut_layers(cut_.attention(), attention_norm_->forward(input.state.hidden), input.tokens);
  const at::Tensor attended = input.state.hidden + dropout(output_->forward(attend(entering, input)));
  const at::Tensor normal = nn::into_cut_layers(cut_.feed_forward(), mlp_norm_->forward(attended), input.tokens);
  return {attended + dropout(project_->forward(config_.activation(expand_->forward(normal))))};
}

Gpt2LMHeadModel::Gpt2LMHeadModel(const Gpt2Config& config, const nn::TensorAxis& axis) : dropout_(config.embd_pdrop) {
  tokens_ =
      nn::add(*this, "transformer.wte", std::make_shared<TokenEmbeddings>(config.vocab_size, config.n_embd, -1, axis));
  positions_ = nn::add(*this, "transformer.wpe",
                       std::make_shared<nn::Embedding>(config.n_positions, config.n_embd, -1, tokens_->axis()));
  for (size_t i = 0; i < static_cast<size_t>(config.n_layer); ++i) {
    layers_.push_back(nn::add(*this, fmt::format("transformer.h.{}", i), std::make_shared<Gpt2Layer>(config, i, axis)));
  }
  norm_ = nn::add(*this, "transformer.ln_f",
                  std::make_shared<nn::LayerNorm>(config.n_embd, config.layer_norm_epsilon, axis.called(kLastNorm)));
  const at::Tensor tied = config.tie_word_embeddings ? tokens_->weight : at::Tensor();
  head_ = nn::add(*this, "lm_head", std::make_shared<LanguageHead>(config.vocab_size, config.n_embd, tied, axis));
}

at::Tensor Gpt2LMHeadModel::embed(const at::Tensor& ids, const at::Tensor& positions) {
  const nn::TokenShape tokens = nn::tokens_of(ids);
  const at::Tensor places = positions_->forward(nn::own_tokens(head_->axis(), positions, tokens));
  return nn::dropout_of_own(head_->axis(), (*tokens_)(ids) + places, dropout_, is_training(), tokens);
}

}  // namespace tessera::models

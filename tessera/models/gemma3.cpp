#include "tessera/models/gemma3.h"

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <utility>

#include "tessera/base/json_value.h"
#include "tessera/models/config_values.h"
#include "tessera/models/models.h"
#include "tessera/models/rotary_config.h"
#include "tessera/nn/module_path.h"

namespace tessera::models {
namespace {

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

class Gemma3Reader {
 public:
  explicit Gemma3Reader(const ModelConfig& file) : file_(file), values_(file) {}

  Gemma3Config read() const {
    refuse_what_is_not_here();
    Gemma3Config config{.vocab_size = values_.size("vocab_size", 262208),
                        .hidden_size = values_.size("hidden_size", 2304),
                        .intermediate_size = values_.size("intermediate_size", 9216),
                        .num_hidden_layers = values_.layers("num_hidden_layers", 26),
                        .num_attention_heads = values_.size("num_attention_heads", 8),
                        .head_dim = values_.size("head_dim", 256),
                        .max_position_embeddings = values_.size("max_position_embeddings", 131072),
                        .query_pre_attn_scalar = values_.get("query_pre_attn_scalar", 256.0),
                        .rms_norm_eps = values_.norm_eps("rms_norm_eps", 1e-6),
                        .initializer_range = values_.initializer_range(),
                        .attention_dropout = values_.probability("attention_dropout", 0),
                        .attention_bias = values_.get("attention_bias", false),
                        .tie_word_embeddings = values_.get("tie_word_embeddings", true)};
    config.num_key_value_heads = values_.key_heads(4, config.num_attention_heads);
    config.pad_token_id = values_.padding_id(0, config.vocab_size);
    if (!(config.query_pre_attn_scalar > 0) || !std::isfinite(config.query_pre_attn_scalar)) {
      values_.refuse(fmt::format("query_pre_attn_scalar is {}", config.query_pre_attn_scalar),
                     "use a number above 0, such as head_dim");
    }
    const auto activation = values_.get("hidden_activation", std::string("gelu_pytorch_tanh"));
    config.activation = nn::find_activation(activation);
    if (config.activation == nullptr) {
      values_.refuse(fmt::format("hidden_activation, '{:.100}', is not supported", activation),
                     fmt::format("use one of these: {}", fmt::join(nn::known_activations(), ", ")));
    }
    config.windows = windows(static_cast<size_t>(config.num_hidden_layers));
    config.global_turns = rotary_of(kFull, "rope_theta", 1'000'000, config);
    config.local_turns = rotary_of(kSliding, "rope_local_base_freq", 10'000, config);
    return config;
  }

 private:
  void refuse_what_is_not_here() const {
    for (const char* const key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
      const auto found = file_.values.find(key);
      if (found != file_.values.end() && !found->is_null())
        values_.refuse(fmt::format("{} is set, which is not supported", key), "use a model whose config.json has null");
    }
    if (values_.get("use_bidirectional_attention", false))
      values_.refuse("use_bidirectional_attention is set, which is not supported", "use a model that is causal");
  }

  // By layer_types where the file has them, else all but each sliding_window_pattern-th slide.
  std::vector<int64_t> windows(size_t layers) const {
    const auto types = values_.get("layer_types", std::vector<std::string>{});
    if (!types.empty() && types.size() != layers) {
      values_.refuse(fmt::format("layer_types has {} entries for {} layers", types.size(), layers),
                     "check the file, or get it again");
    }
    const auto pattern = static_cast<size_t>(values_.size("sliding_window_pattern", 6));
    std::vector<int64_t> windows(layers, 0);
    for (size_t layer = 0; layer < layers; ++layer) {
      if (types.empty() ? (layer + 1) % pattern != 0 : slides(types[layer])) windows[layer] = window();
    }
    return windows;
  }

  bool slides(const std::string& type) const {
    if (type == kSliding || type == kFull) return type == kSliding;
    values_.refuse(fmt::format("layer_types names '{:.100}', which is not supported", type),
                   fmt::format("those known: {}, {}", kSliding, kFull));
  }

  int64_t window() const {
    if (!values_.is_null("sliding_window")) return values_.size("sliding_window", 4096);
    values_.refuse("sliding_window is null, but layers have one", "give a number of tokens");
  }

  // config.json as it would be if all layers were of this kind. transformers 5 writes rope_parameters by kind; earlier
  // folders have a theta of each, and rope_scaling, which is of full attention.
  nn::RotaryOptions rotary_of(const char* kind, const char* theta_key, double theta, const Gemma3Config& config) const {
    ModelConfig of_kind = file_;
    nlohmann::json& values = of_kind.values;
    values["rope_theta"] = json_value(file_.values, theta_key, theta, file_.path);
    if (std::string(kind) == kSliding) values.erase("rope_scaling");
    const auto found = file_.values.find("rope_parameters");
    if (found != file_.values.end() && found->is_object()) {
      if (!found->empty() && !found->contains(kFull) && !found->contains(kSliding)) {
        values_.refuse("rope_parameters names no kind of layer",
                       fmt::format("give those of {} and {}", kSliding, kFull));
      }
      nlohmann::json& own = values["rope_parameters"] = found->value(kind, nlohmann::json());
      const auto scaling = values.find("rope_scaling");
      if (own.is_object() && scaling != values.end() && scaling->is_object()) own.update(*scaling);
    }
    return read_rotary(of_kind, config.head_dim, config.max_position_embeddings, theta);
  }

  const ModelConfig& file_;
  ConfigValues values_;
};

class Gemma3 final : public RmsDecoderModel<Gemma3Config> {
 public:
  using RmsDecoderModel::RmsDecoderModel;

  std::shared_ptr<Network> network() const override { return network_over({}); }
  std::shared_ptr<Network> network_over(const nn::TensorAxis& axis) const override {
    return std::make_shared<Gemma3ForCausalLM>(config(), axis);
  }

 protected:
  double first_norm() const override { return 0; }  // around one
  bool is_embedding(const std::string& name) const override { return name == "model.embed_tokens.weight"; }
};

}  // namespace

Gemma3Config read_gemma3_config(const ModelConfig& file) { return Gemma3Reader(file).read(); }

ModelType gemma3_model_type() {
  return {.classes = {{.head = "CausalLM", .name = "Gemma3ForCausalLM", .weights_from = {"Gemma3ForCausalLM"}}},
          .read = [](const ModelConfig& config, const ModelClass&) -> std::unique_ptr<Model> {
            return std::make_unique<Gemma3>(read_gemma3_config(config));
          }};
}

Gemma3Layer::Gemma3Layer(const Gemma3Config& config, size_t number, const nn::TensorAxis& axis)
    : cut_(cut_of_layer(config, number, axis, config.intermediate_size)),
      head_size_(config.head_dim),
      window_(config.windows[number]),
      scale_(1 / std::sqrt(config.query_pre_attn_scalar)),
      dropout_(config.attention_dropout),
      activation_(config.activation) {
  const int64_t hidden = config.hidden_size;
  const auto add = [&](const char* path, const BlockCut::Layer& linear) { return nn::add(*this, path, linear); };
  const auto norm = [&](const char* path, int64_t width, const nn::TensorAxis& by) {
    return nn::add(*this, path, std::make_shared<nn::RmsNorm>(width, config.rms_norm_eps, /*around_one=*/true, by));
  };
  query_ = add("self_attn.q_proj", cut_.queries(hidden, config.attention_bias));
  key_ = add("self_attn.k_proj", cut_.keys(hidden, config.attention_bias));
  value_ = add("self_attn.v_proj", cut_.keys(hidden, config.attention_bias));
  output_ = add("self_attn.o_proj", cut_.attended(hidden, config.attention_bias));
  query_norm_ = norm("self_attn.q_norm", head_size_, cut_.attention());
  key_norm_ = norm("self_attn.k_norm", head_size_, cut_.attention());
  gate_ = add("mlp.gate_proj", cut_.inner(hidden, /*bias=*/false));
  up_ = add("mlp.up_proj", cut_.inner(hidden, /*bias=*/false));
  down_ = add("mlp.down_proj", cut_.outer(hidden, /*bias=*/false));
  before_attention_ = norm("input_layernorm", hidden, cut_.attention());
  after_attention_ = norm("post_attention_layernorm", hidden, cut_.attention());
  before_feed_forward_ = norm("pre_feedforward_layernorm", hidden, cut_.feed_forward());
  after_feed_forward_ = norm("post_feedforward_layernorm", hidden, cut_.feed_forward());
}

at::Tensor Gemma3Layer::attend(const at::Tensor& hidden, const DecoderInput& input) const {
  const at::Tensor entering = nn::into_cut_layers(cut_.attention(), hidden, input.tokens);
  const auto split = [&](const nn::Linear& linear, int64_t heads) {
    return linear.forward(entering).view({input.tokens.batch, input.tokens.length, heads, head_size_});
  };
  AttentionHeads heads{.query = query_norm_->forward(split(*query_, cut_.heads())),
                       .key = key_norm_->forward(split(*key_, cut_.key_heads())),
                       .value = split(*value_, cut_.key_heads())};
  return output_->forward(
      rotary_attention(std::move(heads), input, window_,
                       {.scale = scale_, .dropout = is_training() ? dropout_ : 0, .heads = &cut_.attention()}));
}

at::Tensor Gemma3Layer::feed_forward(const at::Tensor& hidden, const nn::TokenShape& tokens) const {
  const at::Tensor entering = nn::into_cut_layers(cut_.feed_forward(), hidden, tokens);
  return down_->forward(activation_(gate_->forward(entering)) * up_->forward(entering));
}

DecoderState Gemma3Layer::forward(const DecoderInput& input) {
  const at::Tensor attended = attend(before_attention_->forward(input.state.hidden), input);
  const at::Tensor hidden = input.state.hidden + after_attention_->forward(attended);
  const at::Tensor fed = feed_forward(before_feed_forward_->forward(hidden), input.tokens);
  return {hidden + after_feed_forward_->forward(fed)};
}

Gemma3ForCausalLM::Gemma3ForCausalLM(const Gemma3Config& config, const nn::TensorAxis& axis)
    : root_of_width_(std::sqrt(static_cast<double>(config.hidden_size))),
      windows_(config.windows),
      global_turns_(config.global_turns),
      local_turns_(config.local_turns) {
  embeddings_ =
      nn::add(*this, "model.embed_tokens",
              std::make_shared<TokenEmbeddings>(config.vocab_size, config.hidden_size, config.pad_token_id, axis));
  for (size_t i = 0; i < static_cast<size_t>(config.num_hidden_layers); ++i) {
    layers_.push_back(
        nn::add(*this, fmt::format("model.layers.{}", i), std::make_shared<Gemma3Layer>(config, i, axis)));
  }
  norm_ = nn::add(*this, "model.norm",
                  std::make_shared<nn::RmsNorm>(config.hidden_size, config.rms_norm_eps, /*around_one=*/true,
                                                axis.called(kLastNorm)));
  const at::Tensor tied = config.tie_word_embeddings ? embeddings_->weight : at::Tensor();
  head_ = nn::add(*this, "lm_head", std::make_shared<LanguageHead>(config.vocab_size, config.hidden_size, tied, axis));
}

// The factor as the embeddings' dtype has it: 2304 gives 48 in any, 3072 gives 55.5 in bf16.
at::Tensor Gemma3ForCausalLM::embed(const at::Tensor& ids, const at::Tensor& positions) {
  const at::Tensor embedded = RmsDecoder::embed(ids, positions);
  return embedded * at::scalar_tensor(root_of_width_, at::kFloat).to(embedded.scalar_type());
}

std::vector<nn::Rotary::Table> Gemma3ForCausalLM::turns(const at::Tensor& positions) const {
  return {global_turns_.table(positions), local_turns_.table(positions)};
}

}  // namespace tessera::models

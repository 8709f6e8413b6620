#include "tessera/models/llama.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/models/config_values.h"
#include "tessera/models/models.h"
#include "tessera/models/rotary_config.h"
#include "tessera/nn/module_path.h"

namespace tessera::models {

// Where a checkpoint has each part.
struct LlamaNames {
  const char *embeddings, *layers, *norm, *head;
  const char *query, *key, *value, *fused, *output;  // in a layer; `fused` instead of the three, or nullptr
  GatedNames feed_forward;
  const char *attention_norm, *mlp_norm;
};

// Of the layers that are a mixture of experts: where they are, and config.json's keys.
struct LlamaExperts {
  MixtureNames names;
  const char *count_key, *features_key;
  int64_t count, per_token, features;  // where the keys are absent
  bool sums_to_one = true;             // else by the key norm_topk_prob
  bool in_some_layers = false;         // by decoder_sparse_step and mlp_only_layers; else in all
  int64_t shared_features = 0;         // of a shared expert, by its key
};

// Sizes are those that config.json's keys have where they are absent.
struct LlamaFamily {
  const char* model_type;
  const char* class_name;
  const LlamaNames* names;
  int64_t vocab_size = 32000;
  int64_t intermediate_size = 11008;
  int64_t key_value_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;         // 0: hidden size / heads
  int64_t max_positions = 2048;
  const char* bias_key = nullptr;  // of all four attention matrices
  bool input_bias = false;         // always, of queries, keys and values alone
  bool mlp_bias_key = false;
  bool head_norms = false;  // RMSNorm of each head's queries and keys, before they are turned
  enum class Window { kNever, kAlways, kFromLayer } window = Window::kNever;
  int64_t usual_window = 4096;  // 0: none
  double theta = 10000;
  double norm_eps = 1e-6;
  const LlamaExperts* experts = nullptr;
};

namespace {

using Window = LlamaFamily::Window;

constexpr LlamaNames kNames{.embeddings = "model.embed_tokens",
                            .layers = "model.layers",
                            .norm = "model.norm",
                            .head = "lm_head",
                            .query = "self_attn.q_proj",
                            .key = "self_attn.k_proj",
                            .value = "self_attn.v_proj",
                            .fused = nullptr,
                            .output = "self_attn.o_proj",
                            .feed_forward = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"},
                            .attention_norm = "input_layernorm",
                            .mlp_norm = "post_attention_layernorm"};

// One matrix makes, for each key head, its queries, then the key, then the value.
constexpr LlamaNames kInternLm2Names{.embeddings = "model.tok_embeddings",
                                     .layers = "model.layers",
                                     .norm = "model.norm",
                                     .head = "output",
                                     .query = nullptr,
                                     .key = nullptr,
                                     .value = nullptr,
                                     .fused = "attention.wqkv",
                                     .output = "attention.wo",
                                     .feed_forward = {"feed_forward.w1", "feed_forward.w3", "feed_forward.w2"},
                                     .attention_norm = "attention_norm",
                                     .mlp_norm = "ffn_norm"};

constexpr const char* kNewCountKey = "num_local_experts";  // as transformers 5 writes it for every model

constexpr LlamaExperts kMixtralExperts{.names = {.router = "block_sparse_moe.gate",
                                                 .experts = "block_sparse_moe.experts",
                                                 .of_expert = {"w1", "w3", "w2"}},
                                       .count_key = kNewCountKey,
                                       .features_key = "intermediate_size",
                                       .count = 8,
                                       .per_token = 2,
                                       .features = 14336};

constexpr MixtureNames kQwenMixture{.router = "mlp.gate",
                                    .experts = "mlp.experts",
                                    .of_expert = {"gate_proj", "up_proj", "down_proj"},
                                    .shared = "mlp.shared_expert",
                                    .shared_gate = "mlp.shared_expert_gate"};

constexpr LlamaExperts kQwen2Experts{.names = kQwenMixture,
                                     .count_key = "num_experts",
                                     .features_key = "moe_intermediate_size",
                                     .count = 60,
                                     .per_token = 4,
                                     .features = 1408,
                                     .sums_to_one = false,
                                     .in_some_layers = true,
                                     .shared_features = 5632};

constexpr LlamaExperts kQwen3Experts{.names = kQwenMixture,
                                     .count_key = "num_experts",
                                     .features_key = "moe_intermediate_size",
                                     .count = 128,
                                     .per_token = 8,
                                     .features = 768,
                                     .sums_to_one = false,
                                     .in_some_layers = true};

constexpr LlamaFamily kFamilies[] = {
    {.model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .names = &kNames,
     .bias_key = "attention_bias",
     .mlp_bias_key = true},
    {.model_type = "mistral",
     .class_name = "MistralForCausalLM",
     .names = &kNames,
     .intermediate_size = 14336,
     .key_value_heads = 8,
     .max_positions = 131072,
     .window = Window::kAlways},
    {.model_type = "qwen2",
     .class_name = "Qwen2ForCausalLM",
     .names = &kNames,
     .vocab_size = 151936,
     .intermediate_size = 22016,
     .key_value_heads = 32,
     .max_positions = 32768,
     .input_bias = true,
     .window = Window::kFromLayer},
    {.model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .names = &kNames,
     .vocab_size = 151936,
     .intermediate_size = 22016,
     .key_value_heads = 32,
     .head_dim = 128,
     .max_positions = 32768,
     .bias_key = "attention_bias",
     .head_norms = true,
     .window = Window::kFromLayer},
    {.model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .names = &kNames,
     .intermediate_size = 14336,
     .key_value_heads = 8,
     .max_positions = 131072,
     .window = Window::kAlways,
     .usual_window = 0,
     .theta = 1e6,
     .norm_eps = 1e-5,
     .experts = &kMixtralExperts},
    {.model_type = "qwen2_moe",
     .class_name = "Qwen2MoeForCausalLM",
     .names = &kNames,
     .vocab_size = 151936,
     .intermediate_size = 5632,
     .key_value_heads = 16,
     .max_positions = 32768,
     .input_bias = true,
     .window = Window::kFromLayer,
     .experts = &kQwen2Experts},
    {.model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .names = &kNames,
     .vocab_size = 151936,
     .intermediate_size = 6144,
     .key_value_heads = 4,
     .max_positions = 32768,
     .bias_key = "attention_bias",
     .head_norms = true,
     .window = Window::kFromLayer,
     .experts = &kQwen3Experts},
    {.model_type = "internlm2",
     .class_name = "InternLM2ForCausalLM",
     .names = &kInternLm2Names,
     .vocab_size = 103168,
     .bias_key = "bias"},
};

const LlamaFamily& family_of(const std::string& model_type) {
  const auto* const found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                         [&](const LlamaFamily& each) { return model_type == each.model_type; });
  TESSERA_INVARIANT(found != std::end(kFamilies));
  return *found;
}

class LlamaReader {
 public:
  explicit LlamaReader(const ModelConfig& file) : file_(file), values_(file), family_(family_of(model_type_of(file))) {}

  LlamaConfig read() const {
    LlamaConfig config{.family = &family_};
    config.hidden_size = values_.size("hidden_size", 4096);
    config.num_attention_heads = values_.size("num_attention_heads", 32);
    config.vocab_size = values_.size("vocab_size", family_.vocab_size);
    config.intermediate_size = values_.size("intermediate_size", family_.intermediate_size);
    config.num_hidden_layers = values_.layers("num_hidden_layers", 32);
    const int64_t key_heads = family_.key_value_heads > 0 ? family_.key_value_heads : config.num_attention_heads;
    config.num_key_value_heads = values_.key_heads(key_heads, config.num_attention_heads);
    config.max_position_embeddings = values_.size("max_position_embeddings", family_.max_positions);
    config.head_dim = head_dim(config);
    read_rest(config);
    config.windows = windows(config);
    if (family_.experts != nullptr) read_experts(*family_.experts, config);
    config.rotary = read_rotary(file_, config.head_dim, config.max_position_embeddings, family_.theta);
    return config;
  }

 private:
  int64_t head_dim(const LlamaConfig& config) const {
    const auto given = values_.size("head_dim", family_.head_dim, /*lowest=*/0);
    if (given > 0) return given;
    if (config.hidden_size % config.num_attention_heads == 0) return config.hidden_size / config.num_attention_heads;
    values_.refuse(fmt::format("num_attention_heads, {}, does not divide hidden_size, {}, and there is no head_dim",
                               config.num_attention_heads, config.hidden_size),
                   "check the file, or get it again");
  }

  void read_rest(LlamaConfig& config) const {
    config.pad_token_id = values_.padding_id(-1, config.vocab_size);
    config.rms_norm_eps = values_.norm_eps("rms_norm_eps", family_.norm_eps);
    config.initializer_range = values_.initializer_range();
    config.attention_dropout = values_.probability("attention_dropout", 0);
    config.tie_word_embeddings = values_.get("tie_word_embeddings", false);
    const bool biases = family_.bias_key != nullptr && values_.get(family_.bias_key, false);
    config.input_bias = family_.input_bias || biases;
    config.output_bias = biases;
    config.mlp_bias = family_.mlp_bias_key && values_.get("mlp_bias", false);
    const auto activation = values_.get("hidden_act", std::string("silu"));
    if (activation != "silu") {
      values_.refuse(fmt::format("hidden_act, the activation '{:.100}', is not supported", activation), "use silu");
    }
  }

  // By layer_types where the file has them, else by the family's rule.
  std::vector<int64_t> windows(const LlamaConfig& config) const {
    const auto layers = static_cast<size_t>(config.num_hidden_layers);
    std::vector<int64_t> windows(layers, 0);
    if (family_.window == Window::kNever || values_.is_null("sliding_window")) return windows;
    const int64_t window = values_.size("sliding_window", family_.usual_window, /*lowest=*/0);
    if (family_.window == Window::kAlways) return std::vector<int64_t>(layers, window);
    if (!values_.get("use_sliding_window", false)) return windows;
    const auto types = values_.get("layer_types", std::vector<std::string>{});
    const auto first = values_.get<int64_t>("max_window_layers", 28);
    for (size_t layer = 0; layer < layers; ++layer) {
      const bool by_type = types.size() == layers;
      const bool slides = by_type ? types[layer] == "sliding_attention" : static_cast<int64_t>(layer) >= first;
      windows[layer] = slides ? window : 0;
    }
    return windows;
  }

  void read_experts(const LlamaExperts& experts, LlamaConfig& config) const {
    const char* const count_key = file_.values.contains(kNewCountKey) ? kNewCountKey : experts.count_key;
    config.router.experts = values_.size(count_key, experts.count);
    config.router.per_token = values_.size("num_experts_per_tok", experts.per_token);
    if (config.router.per_token > config.router.experts) {
      values_.refuse(fmt::format("a token goes to num_experts_per_tok, {}, of {} experts", config.router.per_token,
                                 config.router.experts),
                     "check the file, or get it again");
    }
    config.router.sums_to_one = experts.sums_to_one || values_.get("norm_topk_prob", false);
    config.expert_features = values_.size(experts.features_key, experts.features);
    if (experts.shared_features > 0) {
      config.shared_expert_features = values_.size("shared_expert_intermediate_size", experts.shared_features);
    }
    if (values_.get("router_jitter_noise", 0.0) != 0) {
      values_.refuse("router_jitter_noise, noise on what the router reads, is not supported", "set it to 0");
    }
    if (values_.get("output_router_logits", false)) {
      config.router_losses.balance = values_.probability("router_aux_loss_coef", 0.001);
    }
    config.is_mixture = mixtures(experts, config.num_hidden_layers);
  }

  std::vector<bool> mixtures(const LlamaExperts& experts, int64_t layers) const {
    std::vector<bool> is_mixture(static_cast<size_t>(layers), true);
    if (!experts.in_some_layers) return is_mixture;
    const int64_t step = values_.size("decoder_sparse_step", 1);
    for (int64_t layer = 0; layer < layers; ++layer) is_mixture[static_cast<size_t>(layer)] = (layer + 1) % step == 0;
    for (const int64_t layer : values_.get("mlp_only_layers", std::vector<int64_t>{})) {
      if (layer >= 0 && layer < layers) is_mixture[static_cast<size_t>(layer)] = false;
    }
    return is_mixture;
  }

  const ModelConfig& file_;
  ConfigValues values_;
  const LlamaFamily& family_;
};

class Llama final : public RmsDecoderModel<LlamaConfig> {
 public:
  using RmsDecoderModel::RmsDecoderModel;

  std::shared_ptr<Network> network() const override { return network_over({}); }
  std::shared_ptr<Network> network_over(const nn::TensorAxis& axis) const override {
    return std::make_shared<LlamaForCausalLM>(config(), axis);
  }
  void set_router_losses(std::optional<double> balance, std::optional<double> z) override {
    if (config().is_mixture.empty()) return Model::set_router_losses(balance, z);
    nn::RouterLosses& losses = config().router_losses;
    losses = {.balance = balance.value_or(losses.balance), .z = z.value_or(losses.z)};
  }
  std::optional<Architecture> architecture() const override {
    std::optional<Architecture> sizes = RmsDecoderModel::architecture();
    const std::vector<bool>& is_mixture = config().is_mixture;
    if (std::find(is_mixture.begin(), is_mixture.end(), true) == is_mixture.end()) return sizes;
    const bool has_dense = std::find(is_mixture.begin(), is_mixture.end(), false) != is_mixture.end();
    const nn::RouterOptions& router = config().router;
    const int64_t of_experts = router.per_token * config().expert_features + config().shared_expert_features;
    sizes->ffn = has_dense ? std::max(sizes->ffn, of_experts) : of_experts;  // where layers differ, as if all had most
    sizes->experts_of_token = router.per_token;
    sizes->router_features = router.experts + (config().shared_expert_features > 0 ? 1 : 0);
    return sizes;
  }

 protected:
  double first_norm() const override { return 1; }
  bool is_embedding(const std::string& name) const override {
    return name.starts_with(config().family->names->embeddings);
  }
};

}  // namespace

LlamaConfig read_llama_config(const ModelConfig& file) { return LlamaReader(file).read(); }

ModelType llama_model_type(const std::string& model_type) {
  const std::string class_name = family_of(model_type).class_name;
  return {.classes = {{.head = "CausalLM", .name = class_name, .weights_from = {class_name}}},
          .read = [](const ModelConfig& config, const ModelClass&) -> std::unique_ptr<Model> {
            return std::make_unique<Llama>(read_llama_config(config));
          }};
}

LlamaLayer::LlamaLayer(const LlamaConfig& config, size_t number, const nn::TensorAxis& axis)
    : cut_(cut_of_layer(config, number, axis, config.intermediate_size)),
      head_size_(config.head_dim),
      window_(config.windows[number]),
      dropout_(config.attention_dropout) {
  const LlamaNames& names = *config.family->names;
  const int64_t hidden = config.hidden_size;
  const auto add = [&](const char* path, const BlockCut::Layer& linear) { return nn::add(*this, path, linear); };
  const auto norm = [&](const char* path, int64_t width, const nn::TensorAxis& by) {
    return nn::add(*this, path, std::make_shared<nn::RmsNorm>(width, config.rms_norm_eps, /*around_one=*/false, by));
  };
  if (names.fused != nullptr) {
    const int64_t group = config.num_attention_heads / config.num_key_value_heads;
    fused_ = add(names.fused, cut_.of_key_heads(hidden, (group + 2) * head_size_, config.input_bias, names.fused));
  } else {
    query_ = add(names.query, cut_.queries(hidden, config.input_bias));
    key_ = add(names.key, cut_.keys(hidden, config.input_bias));
    value_ = add(names.value, cut_.keys(hidden, config.input_bias));
  }
  output_ = add(names.output, cut_.attended(hidden, config.output_bias));
  if (config.family->head_norms) {
    query_norm_ = norm("self_attn.q_norm", head_size_, cut_.attention());
    key_norm_ = norm("self_attn.k_norm", head_size_, cut_.attention());
  }
  if (!config.is_mixture.empty() && config.is_mixture[number]) {
    const auto cut_of = [&](int64_t features) { return cut_of_layer(config, number, axis, features); };
    const bool shares = config.shared_expert_features > 0;
    const BlockCut of_shared = shares ? cut_of(config.shared_expert_features) : cut_;
    auto mixture =
        std::make_unique<ExpertMixture>(*this, config.family->experts->names, config.router,
                                        cut_of(config.expert_features), shares ? &of_shared : nullptr, hidden);
    mixture_ = mixture.get();
    feed_forward_ = std::move(mixture);
  } else {
    feed_forward_ = std::make_unique<GatedFeedForward>(*this, names.feed_forward, cut_, hidden, config.mlp_bias);
  }
  attention_norm_ = norm(names.attention_norm, hidden, cut_.attention());
  mlp_norm_ = norm(names.mlp_norm, hidden, cut_.feed_forward());
}

AttentionHeads LlamaLayer::heads_of(const at::Tensor& hidden) const {
  const int64_t batch = hidden.size(0), length = hidden.size(1);
  if (fused_) {
    const int64_t group = cut_.heads() / cut_.key_heads();
    const at::Tensor all = fused_->forward(hidden).view({batch, length, cut_.key_heads(), group + 2, head_size_});
    return {.query = all.narrow(3, 0, group).reshape({batch, length, cut_.heads(), head_size_}),
            .key = all.select(3, group),
            .value = all.select(3, group + 1)};
  }
  const auto split = [&](const nn::Linear& linear,
                         int64_t heads) {  // whose number follows from no token, where none is
    return linear.forward(hidden).view({batch, length, heads, head_size_});
  };
  return {.query = split(*query_, cut_.heads()),
          .key = split(*key_, cut_.key_heads()),
          .value = split(*value_, cut_.key_heads())};
}

at::Tensor LlamaLayer::attend(const at::Tensor& hidden, const DecoderInput& input) const {
  AttentionHeads heads = heads_of(hidden);
  if (query_norm_) {
    heads.query = query_norm_->forward(heads.query);
    heads.key = key_norm_->forward(heads.key);
  }
  return rotary_attention(std::move(heads), input, window_,
                          {.dropout = is_training() ? dropout_ : 0, .heads = &cut_.attention()});
}

DecoderState LlamaLayer::forward(const DecoderInput& input) {
  const auto& [hidden, router_sums] = input.state;
  const at::Tensor entering = nn::into_cut_layers(cut_.attention(), attention_norm_->forward(hidden), input.tokens);
  const at::Tensor attended = hidden + output_->forward(attend(entering, input));
  const at::Tensor normal = mlp_norm_->forward(attended);
  if (mixture_ == nullptr || !router_sums.defined())
    return {attended + (*feed_forward_)(normal, input.tokens), router_sums};
  const auto [result, sums] = mixture_->with_sums(normal, input.tokens, input.counted);
  return {attended + result, router_sums + sums};
}

LayerExperts LlamaLayer::experts() const {
  if (mixture_ == nullptr) return {};
  return {.path = mixture_->path(), .share = mixture_->share_of_token()};
}

void LlamaLayer::share_experts(const nn::ExpertAxis& axis) {
  if (mixture_ != nullptr) mixture_->share(axis, *this);
}

std::vector<std::string> LlamaForCausalLM::share_experts(const nn::ExpertAxis& axis) {
  if (axis.size() == 1 || routers_.layers == 0) return Network::share_experts(axis);
  std::vector<std::string> paths;
  for (const Link& link : links()) {
    if (!link.experts.empty()) paths.push_back(link.experts);
  }
  for (const auto& layer : layers_) layer->share_experts(axis);
  return paths;
}

LlamaForCausalLM::LlamaForCausalLM(const LlamaConfig& config, const nn::TensorAxis& axis)
    : rotary_(config.rotary),
      routers_{.losses = config.router_losses,
               .experts = config.router.experts,
               .layers = std::count(config.is_mixture.begin(), config.is_mixture.end(), true)} {
  const LlamaNames& names = *config.family->names;
  embeddings_ =
      nn::add(*this, names.embeddings,
              std::make_shared<TokenEmbeddings>(config.vocab_size, config.hidden_size, config.pad_token_id, axis));
  for (size_t i = 0; i < static_cast<size_t>(config.num_hidden_layers); ++i) {
    layers_.push_back(
        nn::add(*this, fmt::format("{}.{}", names.layers, i), std::make_shared<LlamaLayer>(config, i, axis)));
  }
  norm_ = nn::add(*this, names.norm,
                  std::make_shared<nn::RmsNorm>(config.hidden_size, config.rms_norm_eps, /*around_one=*/false,
                                                axis.called(kLastNorm)));
  const at::Tensor tied = config.tie_word_embeddings ? embeddings_->weight : at::Tensor();
  head_ = nn::add(*this, names.head, std::make_shared<LanguageHead>(config.vocab_size, config.hidden_size, tied, axis));
}

}  // namespace tessera::models

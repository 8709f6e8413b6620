#include "tessera/models/bert.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/models/initial_values.h"
#include "tessera/models/models.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/module_path.h"
#include "tessera/nn/target_loss.h"

namespace tessera::models {
namespace {

using Activation = at::Tensor (*)(const at::Tensor&);

Activation find_activation(const std::string& name, const std::string& where) {
  if (name == "gelu") return [](const at::Tensor& x) { return at::gelu(x); };
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return [](const at::Tensor& x) { return at::gelu(x, "tanh"); };
  if (name == "relu") return [](const at::Tensor& x) { return at::relu(x); };
  throw Error(ErrorKind::kData, {fmt::format("hidden_act, the activation '{:.100}', is not supported", name), where,
                                 "use gelu, gelu_new, gelu_pytorch_tanh or relu"});
}

at::Tensor activate(const std::string& name, const at::Tensor& input) {
  return find_activation(name, "config.json")(input);
}

constexpr int64_t kLargestSize = 1'000'000'000;  // beyond that a size is a slip of the pen, and products overflow
constexpr int64_t kMostLayers = 100'000;

bool describe_a_model(const BertConfig& config) {
  const auto all_in = [](std::initializer_list<int64_t> sizes, int64_t lowest) {
    return std::all_of(sizes.begin(), sizes.end(), [&](int64_t n) { return n >= lowest && n <= kLargestSize; });
  };
  return all_in({config.hidden_size, config.num_attention_heads, config.intermediate_size, config.vocab_size,
                 config.max_position_embeddings},
                1) &&
         all_in({config.num_hidden_layers, config.type_vocab_size}, 0) && config.num_hidden_layers <= kMostLayers &&
         config.hidden_size % config.num_attention_heads == 0;
}

// What config.json may ask for beside sizes.
void require_supported(const BertConfig& config, const ModelConfig& file) {
  find_activation(config.hidden_act, file.path);
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    throw Error(ErrorKind::kData, {what, file.path, fix});
  };
  for (const auto& [key, probability] :
       {std::pair("hidden_dropout_prob", config.hidden_dropout_prob),
        std::pair("attention_probs_dropout_prob", config.attention_probs_dropout_prob)}) {
    if (probability >= 0 && probability < 1) continue;
    refuse(fmt::format("{} is {}", key, probability), "use a number of at least 0 and below 1");
  }
  if (!(config.layer_norm_eps > 0 && config.layer_norm_eps < 1)) {
    refuse(fmt::format("layer_norm_eps is {}", config.layer_norm_eps),
           "use a number above 0 and below 1, such as 1e-12");
  }
  if (!(config.initializer_range >= 0 && config.initializer_range <= 1)) {
    refuse(fmt::format("initializer_range is {}", config.initializer_range), "use a number of 0 to 1, such as 0.02");
  }
  if (json_value(file.values, "is_decoder", false, file.path)) {
    refuse("is_decoder is true, and BERT as a decoder is not supported", "use an encoder");
  }
  const auto positions = json_value(file.values, "position_embedding_type", std::string("absolute"), file.path);
  if (positions != "absolute") {
    refuse(fmt::format("position_embedding_type '{:.100}' is not supported", positions),
           "use a model with absolute positions");
  }
}

BertConfig bert_config_of(const ModelConfig& file) {
  const nlohmann::json& json = file.values;
  const std::string& path = file.path;
  BertConfig config;
  const auto read = [&](const char* key, auto& value) { value = json_value(json, key, value, path); };
  read("vocab_size", config.vocab_size);
  read("hidden_size", config.hidden_size);
  read("num_hidden_layers", config.num_hidden_layers);
  read("num_attention_heads", config.num_attention_heads);
  read("intermediate_size", config.intermediate_size);
  read("max_position_embeddings", config.max_position_embeddings);
  read("type_vocab_size", config.type_vocab_size);
  read("pad_token_id", config.pad_token_id);
  read("hidden_act", config.hidden_act);
  read("hidden_dropout_prob", config.hidden_dropout_prob);
  read("attention_probs_dropout_prob", config.attention_probs_dropout_prob);
  read("layer_norm_eps", config.layer_norm_eps);
  read("initializer_range", config.initializer_range);
  if (!describe_a_model(config)) {
    throw Error(ErrorKind::kData, {fmt::format("hidden_size {}, num_attention_heads {}, vocab_size {} and the other "
                                               "sizes do not describe a model",
                                               config.hidden_size, config.num_attention_heads, config.vocab_size),
                                   path, "sizes must be positive, and num_attention_heads must divide hidden_size"});
  }
  require_supported(config, file);
  return config;
}

class Bert final : public Model {
 public:
  explicit Bert(BertConfig config) : config_(std::move(config)) {}

  void set_dropout(double probability) override {
    config_.hidden_dropout_prob = probability;
    config_.attention_probs_dropout_prob = probability;
  }
  std::shared_ptr<Network> network() const override { return std::make_shared<BertForMaskedLM>(config_); }
  void initialize(uint64_t seed, const std::string& name, at::Tensor value) const override {
    initialize_bert_parameter(config_, seed, name, std::move(value));
  }
  bool decays(const std::string& name) const override {
    return !name.ends_with("bias") && name.find("LayerNorm") == std::string::npos;
  }
  std::string base_prefix() const override { return "bert."; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.max_position_embeddings; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  std::optional<Architecture> architecture() const override {
    return Architecture{.layers = config_.num_hidden_layers,
                        .hidden = config_.hidden_size,
                        .heads = config_.num_attention_heads,
                        .kv_heads = config_.num_attention_heads,
                        .head_size = config_.hidden_size / config_.num_attention_heads,
                        .ffn = config_.intermediate_size,
                        .vocab = config_.vocab_size,
                        .max_positions = config_.max_position_embeddings,
                        .logits_of_targets_only = true,
                        .logit_rows_at_once = nn::target_rows_at_once(config_.vocab_size),
                        .hidden_dropout = config_.hidden_dropout_prob,
                        .attention_dropout = config_.attention_probs_dropout_prob};
  }

 private:
  BertConfig config_;
};

}  // namespace

ModelType bert_model_type() {
  return {.classes = {{.head = "MaskedLM",
                       .name = "BertForMaskedLM",
                       .weights_from = {"BertForMaskedLM", "BertForPreTraining", "BertModel"}}},
          .read = [](const ModelConfig& config, const ModelClass&) -> std::unique_ptr<Model> {
            return std::make_unique<Bert>(bert_config_of(config));
          }};
}

BertConfig read_bert_config(const std::string& folder) {
  const ModelConfig config = read_model_config(folder);
  const std::string type = model_type_of(config);
  if (type != "bert") {
    throw Error(ErrorKind::kData, {fmt::format("the model is a '{}'", type), config.path, "use the folder of a BERT"});
  }
  return bert_config_of(config);
}

BertEmbeddings::BertEmbeddings(const BertConfig& config) : dropout_(config.hidden_dropout_prob) {
  const int64_t width = config.hidden_size;
  word_embeddings =
      nn::add(*this, "word_embeddings", std::make_shared<nn::Embedding>(config.vocab_size, width, config.pad_token_id));
  position_embeddings_ =
      nn::add(*this, "position_embeddings", std::make_shared<nn::Embedding>(config.max_position_embeddings, width));
  token_type_embeddings_ =
      nn::add(*this, "token_type_embeddings", std::make_shared<nn::Embedding>(config.type_vocab_size, width));
  norm_ = nn::add(*this, "LayerNorm", std::make_shared<nn::LayerNorm>(width, config.layer_norm_eps));
}

at::Tensor BertEmbeddings::forward(const BertInput& input) {
  const at::Tensor& ids = input.input_ids;
  const at::Tensor types = input.token_type_ids.defined() ? input.token_type_ids : at::zeros_like(ids);
  const at::Tensor positions = at::arange(ids.size(1), ids.options()).unsqueeze(0);
  at::Tensor hidden = word_embeddings->forward(ids) + token_type_embeddings_->forward(types);
  hidden = hidden + position_embeddings_->forward(positions);
  return at::dropout(norm_->forward(hidden), dropout_, is_training());
}

BertLayer::BertLayer(const BertConfig& config) : config_(config) {
  const int64_t width = config.hidden_size;
  const auto linear = [&](const std::string& path, int64_t in, int64_t out) {
    return nn::add(*this, path, std::make_shared<nn::Linear>(in, out));
  };
  const auto norm = [&](const std::string& path) {
    return nn::add(*this, path, std::make_shared<nn::LayerNorm>(width, config.layer_norm_eps));
  };
  query_ = linear("attention.self.query", width, width);
  key_ = linear("attention.self.key", width, width);
  value_ = linear("attention.self.value", width, width);
  attention_output_ = linear("attention.output.dense", width, width);
  attention_norm_ = norm("attention.output.LayerNorm");
  intermediate_ = linear("intermediate.dense", width, config.intermediate_size);
  output_ = linear("output.dense", config.intermediate_size, width);
  output_norm_ = norm("output.LayerNorm");
}

at::Tensor BertLayer::attend(const at::Tensor& hidden, const at::Tensor& mask) const {
  const int64_t heads = config_.num_attention_heads;
  const auto split = [&](const at::Tensor& x) {  // (batch, length, hidden) -> (batch, heads, length, hidden / heads)
    return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
  };
  const std::optional<at::Tensor> attend_to = mask.defined() ? std::optional(mask) : std::nullopt;
  const at::Tensor context = at::scaled_dot_product_attention(
      split(query_->forward(hidden)), split(key_->forward(hidden)), split(value_->forward(hidden)), attend_to,
      is_training() ? config_.attention_probs_dropout_prob : 0.0);
  return context.transpose(1, 2).reshape(hidden.sizes());
}

at::Tensor BertLayer::forward(const at::Tensor& hidden, const at::Tensor& mask) {
  const auto dropout = [&](const at::Tensor& x) { return at::dropout(x, config_.hidden_dropout_prob, is_training()); };
  const at::Tensor attended =
      attention_norm_->forward(dropout(attention_output_->forward(attend(hidden, mask))) + hidden);
  const at::Tensor inner = activate(config_.hidden_act, intermediate_->forward(attended));
  return output_norm_->forward(dropout(output_->forward(inner)) + attended);
}

BertHead::BertHead(const BertConfig& config, const at::Tensor& word_embeddings)
    : activation_(config.hidden_act), decoder_weight_(word_embeddings) {
  const int64_t width = config.hidden_size;
  dense_ = nn::add(*this, "transform.dense", std::make_shared<nn::Linear>(width, width));
  norm_ = nn::add(*this, "transform.LayerNorm", std::make_shared<nn::LayerNorm>(width, config.layer_norm_eps));
  bias_ = register_parameter("bias", nn::declared_parameter({config.vocab_size}));
  // Both names of Hugging Face's tied decoder.
  const auto decoder = register_module("decoder", std::make_shared<torch::nn::Module>("decoder"));
  decoder->register_parameter("weight", decoder_weight_);
  decoder->register_parameter("bias", bias_);
}

at::Tensor BertHead::transformed(const at::Tensor& hidden) const {
  return norm_->forward(activate(activation_, dense_->forward(hidden)));
}

at::Tensor BertHead::forward(const at::Tensor& hidden) {
  return nn::linear(transformed(hidden), decoder_weight_, bias_);
}

at::Tensor BertHead::forward(const at::Tensor& hidden, const at::Tensor& labels) {
  return nn::loss_sum({.hidden = transformed(hidden), .labels = labels}, decoder_weight_, bias_);
}

BertForMaskedLM::BertForMaskedLM(const BertConfig& config) : config_(config) {
  embeddings_ = nn::add(*this, "bert.embeddings", std::make_shared<BertEmbeddings>(config));
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(nn::add(*this, fmt::format("bert.encoder.layer.{}", i), std::make_shared<BertLayer>(config)));
  }
  head_ = nn::add(*this, "cls.predictions", std::make_shared<BertHead>(config, embeddings_->word_embeddings->weight));
}

at::Tensor BertForMaskedLM::encode(const BertInput& input) {
  at::Tensor mask;
  if (input.attention_mask.defined()) mask = input.attention_mask.to(at::kBool).unsqueeze(1).unsqueeze(1);
  at::Tensor hidden = (*embeddings_)(input);
  for (const auto& layer : layers_) {
    const auto run = [layer](const at::Tensor& x, const at::Tensor& m) { return (*layer)(x, m); };
    hidden = checkpoints_activations_ ? nn::checkpoint(run, hidden, mask) : run(hidden, mask);
  }
  return hidden;
}

at::Tensor BertForMaskedLM::forward(const BertInput& input) { return (*head_)(encode(input)); }

at::Tensor BertForMaskedLM::loss_sum(const NamedTensors& batch) {
  return masked_loss_sum({.input_ids = batch.at("input_ids"),
                          .attention_mask = batch.get("attention_mask"),
                          .token_type_ids = batch.get("token_type_ids")},
                         batch.at("labels"));
}

at::Tensor BertForMaskedLM::masked_loss_sum(const BertInput& input, const at::Tensor& labels) {
  const nn::LabelledRows rows = nn::labelled_rows(encode(input), labels);
  return (*head_)(rows.hidden, rows.labels);
}

void initialize_bert_parameter(const BertConfig& config, uint64_t seed, const std::string& name, at::Tensor value) {
  const at::NoGradGuard no_grad;
  if (name.ends_with("bias")) {
    value.zero_();
  } else if (name.find("LayerNorm") != std::string::npos) {
    value.fill_(1);
  } else {
    draw_normal(seed, name, config.initializer_range, value);
    if (name.ends_with("word_embeddings.weight") && config.pad_token_id >= 0 && config.pad_token_id < value.size(0)) {
      value.select(0, config.pad_token_id).zero_();
    }
  }
}

}  // namespace tessera::models

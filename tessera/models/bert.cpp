#include "tessera/models/bert.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/models/models.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/module_path.h"
#include "tessera/nn/target_loss.h"

namespace tessera::models {
namespace {

class Bert final : public Model {
 public:
  Bert(BertConfig config, bool is_classifier) : config_(std::move(config)), is_classifier_(is_classifier) {}

  void set_dropout(double probability) override {
    config_.hidden_dropout_prob = probability;
    config_.attention_probs_dropout_prob = probability;
    config_.classifier_dropout = probability;
  }
  std::shared_ptr<Network> network() const override { return network_over({}); }
  std::shared_ptr<Network> network_over(const nn::TensorAxis& axis) const override {
    if (is_classifier_) return std::make_shared<BertForSequenceClassification>(config_, axis);
    return std::make_shared<BertForMaskedLM>(config_, axis);
  }
  void initialize(uint64_t seed, const std::string& name, at::Tensor value) const override {
    initialize_bert_parameter(config_, seed, name, std::move(value));
  }
  bool decays(const std::string& name) const override { return !name.ends_with("bias") && !is_bert_norm(name); }
  std::string base_prefix() const override { return std::string(config_.family->body) + "."; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.longest_text(); }
  int64_t hidden_size() const override { return config_.hidden_size; }
  std::optional<Architecture> architecture() const override {
    const int64_t outputs = is_classifier_ ? config_.num_labels : config_.vocab_size;
    return Architecture{.layers = config_.num_hidden_layers,
                        .hidden = config_.hidden_size,
                        .heads = config_.num_attention_heads,
                        .kv_heads = config_.num_attention_heads,
                        .head_size = config_.hidden_size / config_.num_attention_heads,
                        .ffn = config_.intermediate_size,
                        .vocab = outputs,
                        .head_weights = config_.hidden_size * (config_.hidden_size + outputs),  // dense, output
                        .max_positions = config_.longest_text(),
                        .logits_of_targets_only = true,
                        .usual_target_share = is_classifier_ ? 1 / static_cast<double>(config_.longest_text()) : 0.15,
                        .logit_rows_at_once = nn::target_rows_at_once(outputs),
                        .hidden_dropout = config_.hidden_dropout_prob,
                        .attention_dropout = config_.attention_probs_dropout_prob};
  }

 private:
  BertConfig config_;
  bool is_classifier_;
};

std::unique_ptr<Model> read_bert(const ModelConfig& file, const ModelClass& as) {
  BertConfig config = read_bert_config(file);
  const bool is_classifier = as.head == kClassifierHead;
  if (is_classifier) {
    if (const auto labels = labels_in(file); !labels.empty()) config.num_labels = static_cast<int64_t>(labels.size());
  } else if (file.values.contains("tie_word_embeddings") && file.values.at("tie_word_embeddings") == false) {
    throw Error(ErrorKind::kData, {"tie_word_embeddings is false, and an output layer of its own is not supported",
                                   file.path, "use a model whose output layer is the word embeddings"});
  }
  return std::make_unique<Bert>(std::move(config), is_classifier);
}

nn::Activation activation_of(const std::string& name) {
  if (const nn::Activation found = nn::find_activation(name)) return found;
  throw Error(ErrorKind::kData, {fmt::format("the activation '{:.100}' is not supported", name), "BertConfig", ""});
}

// The last part of a module's name, from the module above it on: "bert.pooler" of "bert.pooler.dense".
std::string module_above(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(0, dot);
}

}  // namespace

ModelType bert_model_type(const std::string& model_type) {
  const BertFamily& family = *find_bert_family(model_type);
  const auto named = [&](const char* kind) { return std::string(family.class_name) + kind; };
  const std::string masked = named("ForMaskedLM"), labelled = named("ForSequenceClassification");
  const std::vector<std::string> bare = {masked, named("ForPreTraining"), named("Model")};
  std::vector<std::string> any = bare;
  any.insert(any.begin(), labelled);
  return {.classes = {{.head = "MaskedLM", .name = masked, .weights_from = bare, .new_modules = {}},
                      {.head = kClassifierHead,
                       .name = labelled,
                       .weights_from = any,
                       .new_modules = {module_above(family.label_head.dense), module_above(family.label_head.output)}}},
          .read = read_bert};
}

BertEmbeddings::BertEmbeddings(const BertConfig& config, const nn::TensorAxis& of_run) : config_(config) {
  const nn::TensorAxis axis = of_run.called("the embeddings");
  const auto table = [&](const char* name, int64_t count, int64_t padding) {
    return nn::add(*this, name, std::make_shared<nn::Embedding>(count, config.hidden_size, padding, axis));
  };
  word_embeddings =
      nn::add(*this, "word_embeddings",
              std::make_shared<TokenEmbeddings>(config.vocab_size, config.hidden_size, config.pad_token_id, axis));
  position_embeddings_ = table("position_embeddings", config.max_position_embeddings,
                               config.family->counts_positions ? config.pad_token_id : -1);
  const bool has_types = config.family->has_token_types || config.family->counts_positions;
  if (has_types) token_type_embeddings_ = table("token_type_embeddings", config.type_vocab_size, -1);
  norm_ = nn::add(*this, "LayerNorm", std::make_shared<nn::LayerNorm>(config.hidden_size, config.layer_norm_eps, axis));
}

at::Tensor BertEmbeddings::positions_of(const at::Tensor& ids) const {
  if (!config_.family->counts_positions) return at::arange(ids.size(1), ids.options()).unsqueeze(0);
  const at::Tensor is_token = (ids != config_.pad_token_id).to(at::kLong);
  return at::cumsum(is_token, 1) * is_token + config_.pad_token_id;
}

at::Tensor BertEmbeddings::forward(const BertInput& input) {
  const at::Tensor& ids = input.input_ids;
  const nn::TensorAxis& axis = word_embeddings->axis();
  const nn::TokenShape tokens = nn::tokens_of(ids);
  at::Tensor hidden = (*word_embeddings)(ids);
  if (token_type_embeddings_) {
    const bool has_several = config_.family->has_token_types && config_.type_vocab_size > 1;
    const at::Tensor types = has_several && input.token_type_ids.defined() ? input.token_type_ids : at::zeros_like(ids);
    hidden = hidden + token_type_embeddings_->forward(nn::own_tokens(axis, types, tokens));
  }
  hidden = hidden + position_embeddings_->forward(nn::own_tokens(axis, positions_of(ids), tokens));
  return nn::dropout_of_own(axis, norm_->forward(hidden), config_.hidden_dropout_prob, is_training(), tokens);
}

BertLayer::BertLayer(const BertConfig& config, int64_t number, const nn::TensorAxis& axis)
    : config_(config),
      cut_(axis, fmt::format("layer {}", number),
           {.heads = config.num_attention_heads,
            .key_heads = config.num_attention_heads,
            .head_size = config.hidden_size / config.num_attention_heads,
            .features = config.intermediate_size}),
      activation_(activation_of(config.hidden_act)) {
  const int64_t width = config.hidden_size;
  const BertFamily::Layer& names = config.family->layer;
  const auto add = [&](const char* path, const BlockCut::Layer& linear) { return nn::add(*this, path, linear); };
  const auto norm = [&](const char* path, const nn::TensorAxis& by) {
    return nn::add(*this, path, std::make_shared<nn::LayerNorm>(width, config.layer_norm_eps, by));
  };
  query_ = add(names.query, cut_.queries(width, /*bias=*/true));
  key_ = add(names.key, cut_.keys(width, /*bias=*/true));
  value_ = add(names.value, cut_.keys(width, /*bias=*/true));
  attention_output_ = add(names.attention_output, cut_.attended(width, /*bias=*/true));
  attention_norm_ = norm(names.attention_norm, cut_.attention());
  intermediate_ = add(names.intermediate, cut_.inner(width, /*bias=*/true));
  output_ = add(names.output, cut_.outer(width, /*bias=*/true));
  output_norm_ = norm(names.output_norm, cut_.feed_forward());
}

at::Tensor BertLayer::attend(const at::Tensor& hidden, const at::Tensor& mask, const nn::TokenShape& tokens) const {
  const at::Tensor entering = nn::into_cut_layers(cut_.attention(), hidden, tokens);
  const auto split = [&](const nn::Linear& linear) {  // -> (batch, heads, length, hidden / heads)
    const at::Tensor x = linear.forward(entering);
    return x.view({x.size(0), x.size(1), cut_.heads(), -1}).transpose(1, 2);
  };
  const std::optional<at::Tensor> attend_to = mask.defined() ? std::optional(mask) : std::nullopt;
  const at::Tensor query = split(*query_), key = split(*key_), value = split(*value_);
  const double dropout = is_training() ? config_.attention_probs_dropout_prob : 0;
  const nn::PartRandomness own(cut_.attention(), dropout > 0, hidden.device());
  const at::Tensor context = at::scaled_dot_product_attention(query, key, value, attend_to, dropout);
  return context.transpose(1, 2).reshape({tokens.batch, tokens.length, -1});
}

at::Tensor BertLayer::forward(const at::Tensor& hidden, const at::Tensor& mask, const nn::TokenShape& tokens) {
  const auto dropout = [&](const at::Tensor& x) {
    return nn::dropout_of_own(cut_.feed_forward(), x, config_.hidden_dropout_prob, is_training(), tokens);
  };
  at::Tensor attended = attention_output_->forward(attend(hidden, mask, tokens));
  if (config_.family->drops_attention_output) attended = dropout(attended);
  attended = attention_norm_->forward(attended + hidden);
  const at::Tensor entering = nn::into_cut_layers(cut_.feed_forward(), attended, tokens);
  const at::Tensor inner = activation_(intermediate_->forward(entering));
  return output_norm_->forward(dropout(output_->forward(inner)) + attended);
}

BertBody::BertBody(torch::nn::Module& root, const BertConfig& config, const nn::TensorAxis& axis) {
  const std::string body = config.family->body;
  embeddings_ = nn::add(root, body + ".embeddings", std::make_shared<BertEmbeddings>(config, axis));
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string path = fmt::format("{}.{}.{}", body, config.family->layers, i);
    layers_.push_back(nn::add(root, path, std::make_shared<BertLayer>(config, i, axis)));
  }
}

at::Tensor BertBody::run_links(size_t first, size_t end, const std::vector<at::Tensor>& entering,
                               const BertInput& input) {
  at::Tensor mask;
  if (input.attention_mask.defined()) mask = input.attention_mask.to(at::kBool).unsqueeze(1).unsqueeze(1);
  const nn::TokenShape tokens = nn::tokens_of(input.input_ids);
  at::Tensor hidden = first == 0 ? embeddings_->forward(input) : entering.front();
  for (size_t number = std::max<size_t>(first, 1) - 1; number + 1 < std::min(end, links()); ++number) {
    const auto run = [layer = layers_[number], tokens](const at::Tensor& x, const at::Tensor& m) {
      return (*layer)(x, m, tokens);
    };
    hidden = checkpoints_activations_ ? nn::checkpoint(run, hidden, mask) : run(hidden, mask);
  }
  return hidden;
}

at::Tensor BertBody::of_all(const at::Tensor& own, const BertInput& input) const {
  return nn::all_tokens(word_embeddings().axis(), own, nn::tokens_of(input.input_ids));
}

std::vector<Link> BertBody::links_below(const torch::nn::Module& root) const {
  std::vector<Link> links{{.kind = "embeddings", .modules = {}, .others = {nn::path_of(root, *embeddings_)}}};
  for (const auto& layer : layers_) links.push_back({.kind = "layer", .modules = {nn::path_of(root, *layer)}});
  return links;
}

BertHead::BertHead(torch::nn::Module& root, const BertConfig& config, const at::Tensor& word_embeddings,
                   const nn::TensorAxis& axis)
    : activation_(activation_of(config.family->head_always_has_gelu ? "gelu" : config.hidden_act)),
      decoder_weight_(word_embeddings),
      vocabulary_(nn::cut_vocabulary(axis.called("the language head"), config.vocab_size)) {
  const int64_t width = config.hidden_size, words = vocabulary_.own_words(config.vocab_size);
  const BertFamily::MaskedLmHead& names = config.family->masked_lm_head;
  torch::nn::Module& home = names.is_at_root ? root : *this;
  dense_ = nn::add(home, names.dense, std::make_shared<nn::Linear>(width, width));
  norm_ = nn::add(home, names.norm, std::make_shared<nn::LayerNorm>(width, config.layer_norm_eps));
  if (names.is_at_root) {
    register_parameter("weight", decoder_weight_);
    bias_ = register_parameter("bias", nn::declared_parameter({words}));
    return;
  }
  bias_ = register_parameter("bias", nn::declared_parameter({words}));
  // Both names of Hugging Face's tied decoder.
  const auto decoder = register_module("decoder", std::make_shared<torch::nn::Module>("decoder"));
  decoder->register_parameter("weight", decoder_weight_);
  decoder->register_parameter("bias", bias_);
}

std::vector<std::string> BertHead::paths_below(const torch::nn::Module& root) const {
  return {nn::path_of(root, *dense_), nn::path_of(root, *norm_), nn::path_of(root, *this)};
}

at::Tensor BertHead::transformed(const at::Tensor& hidden) const {
  return norm_->forward(activation_(dense_->forward(hidden)));
}

at::Tensor BertHead::forward(const at::Tensor& hidden) {
  return nn::logits_of_words(transformed(hidden), decoder_weight_, bias_, vocabulary_);
}

at::Tensor BertHead::forward(const at::Tensor& hidden, const at::Tensor& labels) {
  return nn::loss_sum({.hidden = vocabulary_.axis.into_parts(transformed(hidden)), .labels = labels}, decoder_weight_,
                      bias_, vocabulary_);
}

void BertHead::specify(const std::string& parameter, layout::ParamSpec& spec) const {
  vocabulary_.specify(parameter == "weight" ? std::vector{decoder_weight_.size(1)} : std::vector<int64_t>(), spec);
}

BertForMaskedLM::BertForMaskedLM(const BertConfig& config, const nn::TensorAxis& axis)
    : config_(config), body_(*this, config, axis) {
  head_ = nn::add(*this, config.family->masked_lm_head.module,
                  std::make_shared<BertHead>(*this, config, body_.word_embeddings().weight, axis));
}

at::Tensor BertForMaskedLM::forward(const BertInput& input) { return (*head_)(body_.encode(input)); }

at::Tensor BertForMaskedLM::loss_sum(const NamedTensors& batch) {
  return masked_loss_sum(bert_input(batch), batch.at("labels"));
}

at::Tensor BertForMaskedLM::masked_loss_sum(const BertInput& input, const at::Tensor& labels) {
  return loss_of(body_.encode(input), labels);
}

at::Tensor BertForMaskedLM::loss_of(const at::Tensor& hidden, const at::Tensor& labels) {
  const nn::LabelledRows rows = nn::labelled_rows(hidden, labels);
  return (*head_)(rows.hidden, rows.labels);
}

std::vector<Link> BertForMaskedLM::links() const {
  std::vector<Link> links = body_.links_below(*this);
  links.push_back(
      {.kind = "head", .modules = head_->paths_below(*this), .others = {nn::path_of(*this, body_.word_embeddings())}});
  return links;
}

std::vector<at::Tensor> BertForMaskedLM::run_links(size_t first, size_t end, const std::vector<at::Tensor>& entering,
                                                   const NamedTensors& batch) {
  const BertInput input = bert_input(batch);
  at::Tensor hidden = body_.run_links(first, end, entering, input);
  return {end > body_.links() ? loss_of(body_.of_all(hidden, input), batch.at("labels")) : std::move(hidden)};
}

BertForSequenceClassification::BertForSequenceClassification(const BertConfig& config, const nn::TensorAxis& axis)
    : config_(config), body_(*this, config, axis) {
  const BertFamily::LabelHead& names = config.family->label_head;
  dense_ = nn::add(*this, names.dense, std::make_shared<nn::Linear>(config.hidden_size, config.hidden_size));
  output_ = nn::add(*this, names.output, std::make_shared<nn::Linear>(config.hidden_size, config.num_labels));
}

at::Tensor BertForSequenceClassification::logits(const NamedTensors& batch) {
  return logits_of(body_.encode(bert_input(batch)));
}

at::Tensor BertForSequenceClassification::logits_of(const at::Tensor& hidden) const {
  const BertFamily::LabelHead& head = config_.family->label_head;
  const auto dropout = [&](const at::Tensor& x) { return at::dropout(x, config_.classifier_dropout, is_training()); };
  at::Tensor first = hidden.select(1, 0);
  if (head.drops_first) first = dropout(first);
  return output_->forward(dropout(head.activation(dense_->forward(first))));
}

std::vector<Link> BertForSequenceClassification::links() const {
  std::vector<Link> links = body_.links_below(*this);
  links.push_back({.kind = "head", .modules = {nn::path_of(*this, *dense_), nn::path_of(*this, *output_)}});
  return links;
}

std::vector<at::Tensor> BertForSequenceClassification::run_links(size_t first, size_t end,
                                                                 const std::vector<at::Tensor>& entering,
                                                                 const NamedTensors& batch) {
  const BertInput input = bert_input(batch);
  at::Tensor hidden = body_.run_links(first, end, entering, input);
  if (end <= body_.links()) return {std::move(hidden)};
  return outputs_of(logits_of(body_.of_all(hidden, input)), batch);
}

BertInput bert_input(const NamedTensors& batch) {
  return {.input_ids = batch.at("input_ids"),
          .attention_mask = batch.get("attention_mask"),
          .token_type_ids = batch.get("token_type_ids")};
}

}  // namespace tessera::models

#include "tessera/models/bert_config.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tanh.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_value.h"
#include "tessera/models/initial_values.h"
#include "tessera/models/models.h"
#include "tessera/models/sequence_classifier.h"

namespace tessera::models {
namespace {

constexpr BertFamily::Keys kBertKeys = {.hidden_size = "hidden_size",
                                        .num_hidden_layers = "num_hidden_layers",
                                        .num_attention_heads = "num_attention_heads",
                                        .intermediate_size = "intermediate_size",
                                        .hidden_act = "hidden_act",
                                        .hidden_dropout = "hidden_dropout_prob",
                                        .attention_dropout = "attention_probs_dropout_prob",
                                        .classifier_dropout = "classifier_dropout"};
constexpr BertFamily::Layer kBertLayer = {.query = "attention.self.query",
                                          .key = "attention.self.key",
                                          .value = "attention.self.value",
                                          .attention_output = "attention.output.dense",
                                          .attention_norm = "attention.output.LayerNorm",
                                          .intermediate = "intermediate.dense",
                                          .output = "output.dense",
                                          .output_norm = "output.LayerNorm"};

at::Tensor tanh_of(const at::Tensor& input) { return at::tanh(input); }
at::Tensor relu_of(const at::Tensor& input) { return at::relu(input); }

constexpr BertFamily kBertFamilies[] = {
    {.type = "bert",
     .class_name = "Bert",
     .keys = kBertKeys,
     .body = "bert",
     .layers = "encoder.layer",
     .layer = kBertLayer,
     .masked_lm_head = {"cls.predictions", "transform.dense", "transform.LayerNorm", /*is_at_root=*/false},
     .label_head = {"bert.pooler.dense", "classifier", tanh_of, /*drops_first=*/false},
     .has_token_types = true,
     .counts_positions = false,
     .drops_attention_output = true,
     .head_always_has_gelu = false,
     .classifier_dropout = -1,
     .vocab_size = 30522,
     .pad_token_id = 0,
     .num_hidden_layers = 12},
    {.type = "roberta",
     .class_name = "Roberta",
     .keys = kBertKeys,
     .body = "roberta",
     .layers = "encoder.layer",
     .layer = kBertLayer,
     .masked_lm_head = {"lm_head", "dense", "layer_norm", /*is_at_root=*/false},
     .label_head = {"classifier.dense", "classifier.out_proj", tanh_of, /*drops_first=*/true},
     .has_token_types = false,
     .counts_positions = true,
     .drops_attention_output = true,
     .head_always_has_gelu = true,
     .classifier_dropout = -1,
     .vocab_size = 50265,
     .pad_token_id = 1,
     .num_hidden_layers = 12},
    {.type = "distilbert",
     .class_name = "DistilBert",
     .keys = {.hidden_size = "dim",
              .num_hidden_layers = "n_layers",
              .num_attention_heads = "n_heads",
              .intermediate_size = "hidden_dim",
              .hidden_act = "activation",
              .hidden_dropout = "dropout",
              .attention_dropout = "attention_dropout",
              .classifier_dropout = "seq_classif_dropout"},
     .body = "distilbert",
     .layers = "transformer.layer",
     .layer = {.query = "attention.q_lin",
               .key = "attention.k_lin",
               .value = "attention.v_lin",
               .attention_output = "attention.out_lin",
               .attention_norm = "sa_layer_norm",
               .intermediate = "ffn.lin1",
               .output = "ffn.lin2",
               .output_norm = "output_layer_norm"},
     .masked_lm_head = {"vocab_projector", "vocab_transform", "vocab_layer_norm", /*is_at_root=*/true},
     .label_head = {"pre_classifier", "classifier", relu_of, /*drops_first=*/false},
     .has_token_types = false,
     .counts_positions = false,
     .drops_attention_output = false,
     .head_always_has_gelu = false,
     .classifier_dropout = 0.2,
     .vocab_size = 30522,
     .pad_token_id = 0,
     .num_hidden_layers = 6},
};

constexpr int64_t kLargestBertSize = 1'000'000'000;  // beyond that a size is a slip of the pen, and products overflow
constexpr int64_t kMostBertLayers = 100'000;

bool describe_a_model(const BertConfig& config) {
  const auto all_in = [](std::initializer_list<int64_t> sizes, int64_t lowest) {
    return std::all_of(sizes.begin(), sizes.end(), [&](int64_t n) { return n >= lowest && n <= kLargestBertSize; });
  };
  return all_in({config.hidden_size, config.num_attention_heads, config.intermediate_size, config.vocab_size,
                 config.max_position_embeddings},
                1) &&
         all_in({config.num_hidden_layers, config.type_vocab_size}, 0) && config.num_hidden_layers <= kMostBertLayers &&
         config.hidden_size % config.num_attention_heads == 0;
}

// What config.json may ask for beside sizes.
void require_supported(const BertConfig& config, const ModelConfig& file) {
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    throw Error(ErrorKind::kData, {what, file.path, fix});
  };
  const BertFamily::Keys& keys = config.family->keys;
  if (nn::find_activation(config.hidden_act) == nullptr) {
    refuse(fmt::format("{}, the activation '{:.100}', is not supported", keys.hidden_act, config.hidden_act),
           fmt::format("use one of these: {}", fmt::join(nn::known_activations(), ", ")));
  }
  for (const auto& [key, probability] : {std::pair(keys.hidden_dropout, config.hidden_dropout_prob),
                                         std::pair(keys.attention_dropout, config.attention_probs_dropout_prob),
                                         std::pair(keys.classifier_dropout, config.classifier_dropout)}) {
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
  if (json_value(file.values, "sinusoidal_pos_embds", false, file.path)) {
    refuse("sinusoidal_pos_embds is true, and positions that are not trained are not supported",
           "use a model whose positions are trained");
  }
  const auto positions = json_value(file.values, "position_embedding_type", std::string("absolute"), file.path);
  if (positions != "absolute") {
    refuse(fmt::format("position_embedding_type '{:.100}' is not supported", positions),
           "use a model with absolute positions");
  }
  if (config.family->counts_positions && (config.pad_token_id < 0 || config.longest_text() < 1)) {
    refuse(fmt::format("pad_token_id is {} and max_position_embeddings {}: positions are counted from the former on",
                       config.pad_token_id, config.max_position_embeddings),
           "check the file, or get it again");
  }
}

}  // namespace

const BertFamily* find_bert_family(const std::string& type) {
  const auto* const found = std::find_if(std::begin(kBertFamilies), std::end(kBertFamilies),
                                         [&](const BertFamily& family) { return type == family.type; });
  return found == std::end(kBertFamilies) ? nullptr : found;
}

int64_t BertConfig::longest_text() const {
  return family->counts_positions ? max_position_embeddings - pad_token_id - 1 : max_position_embeddings;
}

BertConfig read_bert_config(const ModelConfig& file) {
  const std::string type = model_type_of(file);
  BertConfig config{.family = find_bert_family(type)};
  if (config.family == nullptr) {
    throw Error(ErrorKind::kData,
                {fmt::format("the model is a '{:.100}'", type), file.path, "use the folder of a BERT"});
  }
  const BertFamily::Keys& keys = config.family->keys;
  const auto read = [&](const char* key, auto& value) { value = json_value(file.values, key, value, file.path); };
  config.vocab_size = config.family->vocab_size;
  config.pad_token_id = config.family->pad_token_id;
  config.num_hidden_layers = config.family->num_hidden_layers;
  read("vocab_size", config.vocab_size);
  read(keys.hidden_size, config.hidden_size);
  read(keys.num_hidden_layers, config.num_hidden_layers);
  read(keys.num_attention_heads, config.num_attention_heads);
  read(keys.intermediate_size, config.intermediate_size);
  read("max_position_embeddings", config.max_position_embeddings);
  read("type_vocab_size", config.type_vocab_size);
  read("pad_token_id", config.pad_token_id);
  read(keys.hidden_act, config.hidden_act);
  read(keys.hidden_dropout, config.hidden_dropout_prob);
  read(keys.attention_dropout, config.attention_probs_dropout_prob);
  read("layer_norm_eps", config.layer_norm_eps);
  read("initializer_range", config.initializer_range);
  const double otherwise = config.family->classifier_dropout;
  config.classifier_dropout = otherwise < 0 ? config.hidden_dropout_prob : otherwise;
  read(keys.classifier_dropout, config.classifier_dropout);
  if (!describe_a_model(config)) {
    throw Error(
        ErrorKind::kData,
        {fmt::format("{} {}, {} {}, vocab_size {} and the other sizes do not describe a model", keys.hidden_size,
                     config.hidden_size, keys.num_attention_heads, config.num_attention_heads, config.vocab_size),
         file.path,
         fmt::format("sizes must be positive, and {} must divide {}", keys.num_attention_heads, keys.hidden_size)});
  }
  require_supported(config, file);
  return config;
}

BertConfig read_bert_config(const std::string& folder) { return read_bert_config(read_model_config(folder)); }

void initialize_bert_parameter(const BertConfig& config, uint64_t seed, const std::string& name, at::Tensor value) {
  const at::NoGradGuard no_grad;
  if (name.ends_with("bias")) {
    value.zero_();
    return;
  }
  if (is_bert_norm(name)) {
    value.fill_(1);
    return;
  }
  draw_normal(seed, name, config.initializer_range, value);
  const bool has_padding_row = name.ends_with("word_embeddings.weight") ||
                               (config.family->counts_positions && name.ends_with("position_embeddings.weight"));
  if (has_padding_row && config.pad_token_id >= 0 && config.pad_token_id < value.size(0)) {
    value.select(0, config.pad_token_id).zero_();
  }
}

bool is_bert_norm(const std::string& name) {
  return name.find("LayerNorm") != std::string::npos || name.find("layer_norm") != std::string::npos;
}

}  // namespace tessera::models

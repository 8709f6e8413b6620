#include "tessera/models/t5.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/models/config_values.h"
#include "tessera/models/initial_values.h"
#include "tessera/models/models.h"
#include "tessera/nn/activation_checkpoint.h"
#include "tessera/nn/module_path.h"
#include "tessera/nn/target_loss.h"

namespace tessera::models {
namespace {

class T5 final : public Model {
 public:
  explicit T5(const T5Config& config) : config_(config) {}

  void set_dropout(double probability) override { config_.dropout_rate = probability; }
  std::shared_ptr<Network> network() const override { return network_over({}); }
  std::shared_ptr<Network> network_over(const nn::TensorAxis& axis) const override {
    return std::make_shared<T5ForConditionalGeneration>(config_, axis);
  }

  // Standard deviations of Mesh TensorFlow, which keep what each matrix gives at 1 (as transformers has them).
  void initialize(uint64_t seed, const std::string& name, at::Tensor value) const override {
    const at::NoGradGuard no_grad;
    if (is_norm(name)) {
      value.fill_(config_.initializer_factor);
      return;
    }
    const auto inverse_root = [](int64_t size) { return 1 / std::sqrt(static_cast<double>(size)); };
    double deviation = inverse_root(config_.d_model);
    if (name == "shared.weight" || name == "lm_head.weight") deviation = 1;
    if (name.ends_with(".q.weight")) deviation = inverse_root(config_.d_model * config_.d_kv);
    if (name.ends_with(".o.weight")) deviation = inverse_root(config_.num_heads * config_.d_kv);
    if (name.ends_with(".wo.weight")) deviation = inverse_root(config_.d_ff);
    draw_normal(seed, name, config_.initializer_factor * deviation, value);
  }
  bool decays(const std::string& name) const override { return !is_norm(name); }
  std::string base_prefix() const override { return ""; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return 0; }
  int64_t hidden_size() const override { return config_.d_model; }
  std::optional<Architecture> architecture() const override {
    return Architecture{.layers = config_.num_layers + config_.num_decoder_layers,
                        .decoder_layers = config_.num_decoder_layers,
                        .hidden = config_.d_model,
                        .heads = config_.num_heads,
                        .kv_heads = config_.num_heads,
                        .head_size = config_.d_kv,
                        .ffn = config_.d_ff,
                        .vocab = config_.vocab_size,
                        .head_weights = config_.d_model * config_.vocab_size,
                        .gated_ffn = config_.gated,
                        .logits_of_targets_only = true,
                        .logit_rows_at_once = nn::target_rows_at_once(config_.vocab_size),
                        .hidden_dropout = config_.dropout_rate,
                        .attention_dropout = config_.dropout_rate};
  }

 private:
  static bool is_norm(const std::string& name) { return name.ends_with("layer_norm.weight"); }

  T5Config config_;
};

// "relu", or "gated-gelu", which is transformers' name for gelu_new between gates.
void read_feed_forward(const ConfigValues& values, T5Config& config) {
  auto name = values.get("feed_forward_proj", std::string("relu"));
  config.gated = name.starts_with("gated-");
  if (config.gated) name = name.substr(std::string("gated-").size());
  if (config.gated && name == "gelu") name = "gelu_new";
  config.activation = nn::find_activation(name);
  if (config.activation == nullptr) {
    values.refuse(
        fmt::format("feed_forward_proj, the activation '{:.100}', is not supported", name),
        fmt::format("use one of these, gated- before it or not: {}", fmt::join(nn::known_activations(), ", ")));
  }
}

// Whether the folder's weights have an output layer of their own, as those of T5 1.1 do. Without weights, or one, the
// embeddings are it, whatever tie_word_embeddings says: so transformers has it.
bool has_own_head(const ModelConfig& file) {
  try {
    const auto folder = std::filesystem::absolute(file.path).parent_path();
    return PretrainedWeights(folder.string(), "").contains("lm_head.weight");
  } catch (const Error&) {  // no weights; damaged ones are told when they are read
    return false;
  }
}

// The encoder runs in the first pass, the decoder in each, a token at a time.
class T5Decoding final : public Decoding {
 public:
  T5Decoding(T5ForConditionalGeneration& network, const PromptRows& prompts, int64_t start, int64_t blocks)
      : network_(network),
        prompts_(padded(prompts, /*at_the_front=*/false)),
        start_(start),
        caches_(static_cast<size_t>(blocks)) {
    TESSERA_INVARIANT(prompts.kept == nullptr);
  }

  at::Tensor next_logits(const std::vector<int64_t>& chosen) override {
    if (!memory_.states.defined()) memory_ = network_.encode(prompts_.ids, prompts_.present);
    const at::Tensor written =
        chosen.empty() ? at::full({prompts_.ids.size(0)}, start_, at::kLong) : at::tensor(chosen, at::kLong);
    return network_.next_logits(written.to(prompts_.ids.device()).unsqueeze(1), memory_, caches_);
  }

  void reorder(const std::vector<int64_t>& rows) override {
    const at::Tensor order = at::tensor(rows, at::kLong).to(prompts_.ids.device());
    for (T5BlockCache& cache : caches_) cache.reorder(order);
    memory_.states = memory_.states.index_select(0, order);
    at::Tensor& present = memory_.pattern.present;
    if (present.defined()) present = present.index_select(0, order);
  }

  void idle() override { reorder({0}); }

 private:
  T5ForConditionalGeneration& network_;
  PaddedRows prompts_;
  int64_t start_;
  std::vector<T5BlockCache> caches_;
  T5ForConditionalGeneration::Memory memory_;
};

int64_t read_token(const ConfigValues& values, const char* key, int64_t otherwise, const T5Config& config) {
  const auto id = values.get<int64_t>(key, otherwise);
  if (id < 0 || id >= config.vocab_size)
    values.refuse(fmt::format("{} is {}, of {} tokens", key, id, config.vocab_size), "use one of the vocabulary");
  return id;
}

}  // namespace

T5Config read_t5_config(const ModelConfig& file) {
  const ConfigValues values(file);
  T5Config config{.vocab_size = values.size("vocab_size", 32128),
                  .d_model = values.size("d_model", 512),
                  .d_kv = values.size("d_kv", 64),
                  .d_ff = values.size("d_ff", 2048),
                  .num_layers = values.layers("num_layers", 6),
                  .num_heads = values.size("num_heads", 8),
                  .relative_attention_num_buckets = values.size("relative_attention_num_buckets", 32, 4),
                  .relative_attention_max_distance = values.size("relative_attention_max_distance", 128),
                  .dropout_rate = values.probability("dropout_rate", 0.1),
                  .layer_norm_epsilon = values.norm_eps("layer_norm_epsilon", 1e-6),
                  .initializer_factor = values.get("initializer_factor", 1.0),
                  .tie_word_embeddings = values.get("tie_word_embeddings", true)};
  config.num_decoder_layers = values.layers("num_decoder_layers", config.num_layers);
  config.scale_decoder_outputs = values.get("scale_decoder_outputs", config.tie_word_embeddings);
  config.tie_word_embeddings = config.tie_word_embeddings || !has_own_head(file);
  config.pad_token_id = read_token(values, "pad_token_id", 0, config);
  config.decoder_start_token_id = read_token(values, "decoder_start_token_id", config.pad_token_id, config);
  if (config.relative_attention_max_distance <= config.relative_attention_num_buckets / 2) {
    values.refuse(
        fmt::format("relative_attention_max_distance, {}, leaves no distances to relative_attention_num_buckets, {}",
                    config.relative_attention_max_distance, config.relative_attention_num_buckets),
        "check the file, or get it again");
  }
  read_feed_forward(values, config);
  return config;
}

ModelType t5_model_type() {
  return {.classes = {{.head = "Seq2SeqLM",
                       .name = "T5ForConditionalGeneration",
                       .weights_from = {"T5ForConditionalGeneration", "T5Model"}}},
          .read = [](const ModelConfig& config, const ModelClass&) -> std::unique_ptr<Model> {
            return std::make_unique<T5>(read_t5_config(config));
          }};
}

T5PositionBias::T5PositionBias(const T5Config& config, bool is_decoder, const nn::TensorAxis& axis)
    : buckets_(config.relative_attention_num_buckets),
      max_distance_(config.relative_attention_max_distance),
      is_decoder_(is_decoder),
      heads_(axis.cut_heads(config.num_heads, config.num_heads).query) {
  weight = register_parameter("weight", nn::declared_parameter({buckets_, heads_.own().numel()}));
}

void T5PositionBias::specify(const std::string& /*parameter*/, layout::ParamSpec& spec) const {
  if (heads_.parts.size() == 1) return;
  spec.shape = {buckets_, heads_.whole()};
  spec.shards = {heads_.shard(1)};
}

// An encoder has half of the buckets for each direction; of those half again are for one distance each, the others for
// distances that grow by a constant factor up to max_distance.
at::Tensor T5PositionBias::forward(const at::Tensor& places) {
  const int64_t buckets = is_decoder_ ? buckets_ : buckets_ / 2, exact = buckets / 2;
  const at::Tensor distance = is_decoder_ ? places.clamp_max(0).neg() : places.abs();
  const double growth = std::log(static_cast<double>(max_distance_) / static_cast<double>(exact));
  const at::Tensor scaled =
      at::log(distance.to(at::kFloat) / static_cast<double>(exact)) / growth * static_cast<double>(buckets - exact);
  const at::Tensor far = (scaled.to(at::kLong) + exact).clamp_max(buckets - 1);
  at::Tensor bucket = at::where(distance < exact, distance, far);
  if (!is_decoder_) bucket = bucket + (places > 0).to(at::kLong) * buckets;
  return at::embedding(weight, bucket).permute({2, 0, 1}).unsqueeze(0);
}

void T5BlockCache::reorder(const at::Tensor& rows) {
  own.reorder(rows);
  key = key.index_select(0, rows);
  value = value.index_select(0, rows);
}

T5Block::T5Block(const T5Config& config, bool is_decoder, const std::string& name, const nn::TensorAxis& axis)
    : config_(config),
      cut_(axis, name,
           {.heads = config.num_heads,
            .key_heads = config.num_heads,
            .head_size = config.d_kv,
            .features = config.d_ff}) {
  self_ = add_attention(0, "SelfAttention");
  if (is_decoder) cross_ = add_attention(1, "EncDecAttention");
  const std::string layer = fmt::format("layer.{}", is_decoder ? 2 : 1);
  const auto add = [&](const char* part, const BlockCut::Layer& linear) {
    return nn::add(*this, fmt::format("{}.DenseReluDense.{}", layer, part), linear);
  };
  gate_ = add(config.gated ? "wi_0" : "wi", cut_.inner(config.d_model, /*bias=*/false));
  if (config.gated) up_ = add("wi_1", cut_.inner(config.d_model, /*bias=*/false));
  down_ = add("wo", cut_.outer(config.d_model, /*bias=*/false));
  feed_forward_norm_ = nn::add(*this, layer + ".layer_norm",
                               std::make_shared<nn::RmsNorm>(config.d_model, config.layer_norm_epsilon,
                                                             /*around_one=*/false, cut_.feed_forward()));
}

T5Block::Attention T5Block::add_attention(int number, const char* name) {
  const auto add = [&](const char* part, const BlockCut::Layer& linear) {
    return nn::add(*this, fmt::format("layer.{}.{}.{}", number, name, part), linear);
  };
  Attention made{.q = add("q", cut_.queries(config_.d_model, /*bias=*/false)),
                 .k = add("k", cut_.keys(config_.d_model, /*bias=*/false)),
                 .v = add("v", cut_.keys(config_.d_model, /*bias=*/false)),
                 .o = add("o", cut_.attended(config_.d_model, /*bias=*/false)),
                 .norm = nullptr};
  made.norm = nn::add(*this, fmt::format("layer.{}.layer_norm", number),
                      std::make_shared<nn::RmsNorm>(config_.d_model, config_.layer_norm_epsilon, /*around_one=*/false,
                                                    cut_.attention()));
  return made;
}

at::Tensor T5Block::dropout(const at::Tensor& own, const nn::TokenShape& tokens) const {
  return nn::dropout_of_own(cut_.feed_forward(), own, config_.dropout_rate, is_training(), tokens);
}

at::Tensor T5Block::split(const nn::Linear& linear, const at::Tensor& of) const {
  return linear.forward(of).view({of.size(0), of.size(1), cut_.heads(), config_.d_kv});
}

T5Block::Seen T5Block::written_so_far(const at::Tensor& normal, const T5BlockInput& input) const {
  Seen seen{.key = split(*self_.k, normal), .value = split(*self_.v, normal), .bias = input.bias};
  if (input.cache != nullptr) std::tie(seen.key, seen.value) = input.cache->own.append(seen.key, seen.value);
  return seen;
}

T5Block::Seen T5Block::memory_of(const T5BlockInput& input) const {
  if (input.cache != nullptr && input.cache->key.defined()) {
    return {.key = input.cache->key, .value = input.cache->value, .bias = {}};
  }
  Seen seen{.key = split(*cross_.k, input.memory), .value = split(*cross_.v, input.memory), .bias = {}};
  if (input.cache != nullptr) {
    input.cache->key = seen.key;
    input.cache->value = seen.value;
  }
  return seen;
}

at::Tensor T5Block::attend(const Attention& by, const at::Tensor& normal, const Seen& seen,
                           const nn::AttentionPattern& pattern, const nn::TokenShape& tokens) const {
  const at::Tensor attended = nn::attention(
      split(*by.q, normal), seen.key, seen.value, pattern,
      {.scale = 1, .dropout = is_training() ? config_.dropout_rate : 0, .heads = &cut_.attention(), .bias = seen.bias});
  return dropout(by.o->forward(attended), tokens);
}

at::Tensor T5Block::feed_forward(const at::Tensor& hidden, const nn::TokenShape& tokens) const {
  const at::Tensor normal = nn::into_cut_layers(cut_.feed_forward(), feed_forward_norm_->forward(hidden), tokens);
  at::Tensor inner = config_.activation(gate_->forward(normal));
  if (up_) inner = inner * up_->forward(normal);
  {
    const nn::PartRandomness own(cut_.feed_forward(), is_training() && config_.dropout_rate > 0, hidden.device());
    inner = at::dropout(inner, config_.dropout_rate, is_training());
  }
  return hidden + dropout(down_->forward(inner), tokens);
}

at::Tensor T5Block::forward(const T5BlockInput& input) {
  const nn::TokenShape& tokens = input.tokens;
  const at::Tensor normal = nn::into_cut_layers(cut_.attention(), self_.norm->forward(input.hidden), tokens);
  at::Tensor hidden = input.hidden + attend(self_, normal, written_so_far(normal, input), input.pattern, tokens);
  if (input.memory.defined()) {
    const at::Tensor asking = nn::into_cut_layers(cut_.attention(), cross_.norm->forward(hidden), tokens);
    hidden = hidden + attend(cross_, asking, memory_of(input), input.of_memory, tokens);
  }
  return feed_forward(hidden, tokens);
}

T5ForConditionalGeneration::T5ForConditionalGeneration(const T5Config& config, const nn::TensorAxis& axis)
    : config_(config), axis_(axis.called("the encoder's output")) {
  shared_ = nn::add(*this, "shared", std::make_shared<TokenEmbeddings>(config.vocab_size, config.d_model, -1, axis));
  encoder_ = add_stack("encoder", config.num_layers, /*is_decoder=*/false);
  decoder_ = add_stack("decoder", config.num_decoder_layers, /*is_decoder=*/true);
  const at::Tensor tied = config.tie_word_embeddings ? shared_->weight : at::Tensor();
  head_ = nn::add(*this, "lm_head", std::make_shared<LanguageHead>(config.vocab_size, config.d_model, tied, axis));
}

T5ForConditionalGeneration::Stack T5ForConditionalGeneration::add_stack(const std::string& name, int64_t layers,
                                                                        bool is_decoder) {
  Stack stack;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string path = fmt::format("{}.block.{}", name, i);
    stack.blocks.push_back(nn::add(*this, path, std::make_shared<T5Block>(config_, is_decoder, path, axis_)));
    if (i > 0) continue;
    stack.bias = nn::add(*this, path + ".layer.0.SelfAttention.relative_attention_bias",
                         std::make_shared<T5PositionBias>(config_, is_decoder, axis_));
  }
  stack.norm = nn::add(*this, name + ".final_layer_norm",
                       std::make_shared<nn::RmsNorm>(config_.d_model, config_.layer_norm_epsilon, /*around_one=*/false,
                                                     axis_.called("the norm of the " + name)));
  return stack;
}

at::Tensor T5ForConditionalGeneration::dropout(const at::Tensor& own, const nn::TokenShape& tokens) const {
  return nn::dropout_of_own(axis_, own, config_.dropout_rate, is_training(), tokens);
}

at::Tensor T5ForConditionalGeneration::run(Stack& stack, size_t first, size_t end, T5BlockInput input,
                                           std::vector<T5BlockCache>* caches) {
  if (first == end) return input.hidden;
  const int64_t before = caches == nullptr ? 0 : caches->front().own.length(), length = input.tokens.length;
  const at::Tensor keys = at::arange(before + length, input.hidden.options().dtype(at::kLong));
  const at::Tensor queries = keys.narrow(0, before, length);
  input.bias = (*stack.bias)(keys.unsqueeze(0) - queries.unsqueeze(1));
  for (size_t i = first; i < end; ++i) {
    if (caches != nullptr) input.cache = &(*caches)[i];
    const auto run_block = [block = stack.blocks[i], input](const at::Tensor& hidden, const at::Tensor& bias,
                                                            const at::Tensor& memory) {
      T5BlockInput with = input;
      with.hidden = hidden;
      with.bias = bias;
      with.memory = memory;
      return (*block)(with);
    };
    input.hidden = checkpoints_activations_ ? nn::checkpoint(run_block, input.hidden, input.bias, input.memory)
                                            : run_block(input.hidden, input.bias, input.memory);
  }
  return input.hidden;
}

T5ForConditionalGeneration::Memory T5ForConditionalGeneration::encode(const at::Tensor& ids,
                                                                      const at::Tensor& present) {
  Memory memory;
  if (present.defined()) memory.pattern.present = present.to(at::kBool);
  const nn::TokenShape tokens = nn::tokens_of(ids);
  const T5BlockInput input{.hidden = embed(ids), .tokens = tokens, .pattern = memory.pattern};
  memory.states = for_decoder(encoded(run(encoder_, 0, encoder_.blocks.size(), input), tokens), tokens);
  return memory;
}

at::Tensor T5ForConditionalGeneration::decoded(const at::Tensor& hidden, const nn::TokenShape& tokens) {
  const at::Tensor states = dropout(decoder_.norm->forward(hidden), tokens);
  return config_.scale_decoder_outputs ? states * (1 / std::sqrt(static_cast<double>(config_.d_model))) : states;
}

// Once for all blocks, each of whose gradients of it comes of a rank's own heads.
at::Tensor T5ForConditionalGeneration::for_decoder(const at::Tensor& encoded, const nn::TokenShape& tokens) const {
  return nn::into_cut_layers(axis_, encoded, tokens);
}

at::Tensor T5ForConditionalGeneration::decode(const at::Tensor& written, const Memory& memory,
                                              std::vector<T5BlockCache>* caches) {
  const nn::TokenShape tokens = nn::tokens_of(written);
  const T5BlockInput input{.hidden = embed(written),
                           .tokens = tokens,
                           .pattern = {.causal = true},
                           .memory = memory.states,
                           .of_memory = memory.pattern};
  const at::Tensor own = decoded(run(decoder_, 0, decoder_.blocks.size(), input, caches), tokens);
  return nn::all_tokens(axis_, own, tokens);
}

at::Tensor T5ForConditionalGeneration::written_before(const at::Tensor& labels) const {
  const at::Tensor start = at::full({labels.size(0), 1}, config_.decoder_start_token_id, labels.options());
  const at::Tensor before = at::cat({start, labels.narrow(1, 0, labels.size(1) - 1)}, 1);
  return before.masked_fill(before == nn::kNoTarget, config_.pad_token_id);  // a place without a label is padding
}

at::Tensor T5ForConditionalGeneration::loss_sum(const NamedTensors& batch) {
  return run_links(0, encoder_.blocks.size() + decoder_.blocks.size() + 2, {}, batch).front();
}

at::Tensor T5ForConditionalGeneration::logits(const NamedTensors& batch) {
  const Memory memory = encode(batch.at("input_ids"), batch.get("attention_mask"));
  return (*head_)(decode(written_before(batch.at("labels")), memory));
}

std::vector<Link> T5ForConditionalGeneration::links() const {
  const auto path = [this](const torch::nn::Module& module) { return nn::path_of(*this, module); };
  std::vector<Link> links{{.kind = "embeddings", .modules = {}, .others = {path(*shared_)}}};
  const auto add = [&](const Stack& stack, const char* kind) {
    for (const auto& block : stack.blocks) {
      links.push_back({.kind = kind, .modules = {path(*block)}, .others = {path(*stack.bias)}});
    }
  };
  add(encoder_, "encoder layer");
  links.back().modules.push_back(path(*encoder_.norm));
  add(decoder_, "decoder layer");
  links[encoder_.blocks.size() + 1].others.push_back(path(*shared_));
  links.push_back({.kind = "head", .modules = {path(*decoder_.norm), path(*head_)}});
  if (head_->has(shared_->weight)) links.back().others.push_back(path(*shared_));
  return links;
}

std::vector<at::Tensor> T5ForConditionalGeneration::run_links(size_t first, size_t end,
                                                              const std::vector<at::Tensor>& entering,
                                                              const NamedTensors& batch) {
  const size_t encoder_end = encoder_.blocks.size() + 1, decoder_end = encoder_end + decoder_.blocks.size();
  const auto block = [](size_t link, size_t begin, size_t of) { return std::clamp(link, begin, of) - begin; };
  const at::Tensor& labels = batch.at("labels");
  at::Tensor hidden = first == 0 ? embed(batch.at("input_ids")) : entering.back();
  const nn::TokenShape read = nn::tokens_of(batch.at("input_ids")), written = nn::tokens_of(labels);
  nn::AttentionPattern of_memory;
  if (batch.get("attention_mask").defined()) of_memory.present = batch.get("attention_mask").to(at::kBool);
  if (first < encoder_end) {
    hidden = run(encoder_, block(first, 1, encoder_end), block(end, 1, encoder_end),
                 {.hidden = hidden, .tokens = read, .pattern = of_memory});
    if (end < encoder_end) return {hidden};
    hidden = encoded(hidden, read);
    if (end == encoder_end) return {hidden};
  }
  if (first < decoder_end) {
    const at::Tensor of_encoder = first <= encoder_end ? hidden : entering.front();
    const T5BlockInput input{.hidden = first <= encoder_end ? embed(written_before(labels)) : hidden,
                             .tokens = written,
                             .pattern = {.causal = true},
                             .memory = for_decoder(of_encoder, read),
                             .of_memory = of_memory};
    hidden = run(decoder_, block(first, encoder_end, decoder_end), block(end, encoder_end, decoder_end), input);
    if (end < decoder_end) return {of_encoder, hidden};
    if (end == decoder_end) return {hidden};
  }
  return {(*head_)(decoded(hidden, written), labels)};
}

at::Tensor T5ForConditionalGeneration::next_logits(const at::Tensor& written, const Memory& memory,
                                                   std::vector<T5BlockCache>& caches) {
  return (*head_)(decode(written, memory, &caches).select(1, -1));
}

std::unique_ptr<Decoding> T5ForConditionalGeneration::start(const PromptRows& prompts) {
  const int64_t start = prompts.decoder_start.value_or(config_.decoder_start_token_id);
  if (start < 0 || start >= config_.vocab_size) {
    throw Error(ErrorKind::kData, {fmt::format("decoder_start_token_id is {}, of {} tokens", start, config_.vocab_size),
                                   "generation", "use one of the vocabulary"});
  }
  return std::make_unique<T5Decoding>(*this, prompts, start, config_.num_decoder_layers);
}

}  // namespace tessera::models

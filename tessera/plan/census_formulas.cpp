// The parameters of architectures that cannot be trained yet, module by module, as transformers 5.23 declares them.
#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/plan/census.h"

namespace tessera::plan {
namespace {

using nlohmann::json;

// Sizes of a config.json, each with transformers' default.
class Sizes {
 public:
  Sizes(const json& config, std::string where) : config_(config), where_(std::move(where)) {}

  int64_t operator()(const char* key, int64_t otherwise, int64_t lowest = 1) const {
    if (!config_.contains(key) || config_[key].is_null()) return otherwise;
    const json& value = config_[key];
    constexpr int64_t kLargest = 1'000'000'000;  // beyond that a size is a slip of the pen, and products overflow
    if (!value.is_number_integer() || value.get<int64_t>() < lowest || value.get<int64_t>() > kLargest) {
      throw Error(ErrorKind::kData, {fmt::format("'{}' is {}", key, value.dump()), where_,
                                     fmt::format("use a whole number from {} to {}", lowest, kLargest)});
    }
    return value.get<int64_t>();
  }

  double share(const char* key, double otherwise) const {
    return config_.contains(key) && config_[key].is_number() ? config_[key].get<double>() : otherwise;
  }
  std::string text(const char* key, const char* otherwise) const {
    return config_.contains(key) && config_[key].is_string() ? config_[key].get<std::string>() : otherwise;
  }

 private:
  const json& config_;
  std::string where_;
};

class Tally {
 public:
  void begin_unit(std::string name) { census_.units.push_back({std::move(name)}); }

  // A module that itself holds tensors of these sizes, `count` times alike.
  void add(std::initializer_list<int64_t> tensors, int64_t count = 1) {
    int64_t module = 0;
    UnitCensus& unit = census_.units.back();
    for (const int64_t numel : tensors) {
      module += numel;
      unit.largest_tensor = std::max(unit.largest_tensor, numel);
    }
    unit.numel += module * count;
    census_.params += module * count;
    census_.largest_layer = std::max(census_.largest_layer, module);
  }
  void linear(int64_t in, int64_t out, bool bias, int64_t count = 1) { add({in * out, bias ? out : 0}, count); }

  // A module whose tensors belong to others.
  void share(int64_t module) { census_.largest_layer = std::max(census_.largest_layer, module); }

  ModelCensus finish(Architecture architecture, bool head_shares_embeddings) {
    census_.head_shares_embeddings = head_shares_embeddings;
    census_.architecture = std::move(architecture);
    return std::move(census_);
  }

 private:
  ModelCensus census_;
};

ModelCensus census_of_t5(const Sizes& size) {
  const int64_t encoder_layers = size("num_layers", 6);
  const int64_t decoder_layers = size("num_decoder_layers", encoder_layers);
  Architecture net{.layers = encoder_layers + decoder_layers,
                   .hidden = size("d_model", 512),
                   .heads = size("num_heads", 8),
                   .head_size = size("d_kv", 64),
                   .ffn = size("d_ff", 2048),
                   .vocab = size("vocab_size", 32128),
                   .gated_ffn = size.text("feed_forward_proj", "relu").starts_with("gated"),
                   .hidden_dropout = size.share("dropout_rate", 0.1),
                   .attention_dropout = size.share("dropout_rate", 0.1)};
  net.kv_heads = net.heads;
  const int64_t buckets = size("relative_attention_num_buckets", 32);
  const int64_t inner = net.heads * net.head_size;
  Tally tally;
  tally.begin_unit("shared");
  tally.add({net.vocab * net.hidden});
  const auto attention = [&] {
    tally.linear(net.hidden, inner, false, 3);
    tally.linear(inner, net.hidden, false);
    tally.add({net.hidden});
  };
  for (int64_t layer = 0; layer < net.layers; ++layer) {
    const bool decodes = layer >= encoder_layers;
    const int64_t index = decodes ? layer - encoder_layers : layer;
    tally.begin_unit(fmt::format("{}.block.{}", decodes ? "decoder" : "encoder", index));
    attention();
    if (decodes) attention();                          // over the encoder's output
    if (index == 0) tally.add({buckets * net.heads});  // relative positions, which all blocks use
    tally.linear(net.hidden, net.ffn, false, net.gated_ffn ? 2 : 1);
    tally.linear(net.ffn, net.hidden, false);
    tally.add({net.hidden});
  }
  tally.begin_unit("head");
  tally.add({net.hidden}, 2);  // the final norms of both stacks
  tally.share(net.vocab *
              net.hidden);  // the embeddings': transformers ties it whatever tie_word_embeddings says, and then scales
  return tally.finish(net, true);
}

struct Formula {
  const char* model_type;
  const char* class_name;
  ModelCensus (*count)(const Sizes&);
};
constexpr Formula kFormulas[] = {{"t5", "T5ForConditionalGeneration", census_of_t5}};

}  // namespace

std::vector<std::string> model_types_with_formula() {
  std::vector<std::string> types;
  for (const Formula& formula : kFormulas) types.emplace_back(formula.model_type);
  return types;
}

std::optional<ModelCensus> census_by_formula(const json& config, const std::string& model_type,
                                             const std::string& where) {
  for (const Formula& formula : kFormulas) {
    if (model_type != formula.model_type) continue;
    ModelCensus census = formula.count(Sizes(config, where));
    census.source = fmt::format("{}, from {}", formula.class_name, where);
    return census;
  }
  return std::nullopt;
}

}  // namespace tessera::plan

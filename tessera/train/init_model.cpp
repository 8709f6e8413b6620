#include "tessera/train/init_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/data/tokenizer.h"
#include "tessera/models/model.h"
#include "tessera/models/models.h"
#include "tessera/storage/atomic_dir.h"
#include "tessera/storage/safetensors.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// What config.json calls the sizes; empty: it has none of this kind.
struct SizeNames {
  const char *type, *hidden, *layers, *heads, *kv_heads, *ffn, *positions;
  bool is_gated;
};
constexpr const char* kHidden = "hidden_size";
constexpr const char* kLayers = "num_hidden_layers";
constexpr const char* kHeads = "num_attention_heads";
constexpr const char* kInner = "intermediate_size";
constexpr const char* kPositions = "max_position_embeddings";
constexpr SizeNames kNames[] = {
    {"gpt2", "n_embd", "n_layer", "n_head", "", "n_inner", "n_positions", false},
    {"t5", "d_model", "num_layers", "num_heads", "", "d_ff", "", false},
    {"bert", kHidden, kLayers, kHeads, "", kInner, kPositions, false},
    {"distilbert", "dim", "n_layers", "n_heads", "", "hidden_dim", kPositions, false},
    {"roberta", kHidden, kLayers, kHeads, "", kInner, kPositions, false},
    {"", kHidden, kLayers, kHeads, "num_key_value_heads", kInner, kPositions, true},  // the Llama family, Gemma 3
};

const SizeNames& names_of(const std::string& type) {
  return *std::find_if(std::begin(kNames), std::end(kNames),
                       [&](const SizeNames& names) { return type == names.type || *names.type == '\0'; });
}

ordered_json config_of(const InitModel& asked, const data::Tokenizer* tokenizer) {
  const SizeNames& names = names_of(asked.type);
  ordered_json config{{"architectures", ordered_json::array()}, {"model_type", asked.type}};
  const auto set = [&](const char* name, int64_t value) {
    if (*name != '\0' && value > 0) config[name] = value;
  };
  const int64_t heads = asked.heads > 0 ? asked.heads : std::max<int64_t>(1, asked.hidden / 64);
  const int64_t inner = names.is_gated ? (asked.hidden * 8 / 3 + 63) / 64 * 64 : 4 * asked.hidden;
  set(names.hidden, asked.hidden);
  set(names.layers, asked.layers);
  set(names.heads, heads);
  set(names.kv_heads, asked.kv_heads > 0 ? asked.kv_heads : heads);
  set(names.ffn, asked.ffn > 0 ? asked.ffn : inner);
  set(names.positions, asked.positions);
  if (asked.type == "t5") set("d_kv", asked.hidden / heads);
  if (asked.type == "gemma3_text") {
    for (const char* const key : {"head_dim", "query_pre_attn_scalar"}) set(key, asked.hidden / heads);
  }
  if (tokenizer != nullptr) {
    const data::SpecialIds& ids = tokenizer->special_ids();
    for (const auto& [key, id] :
         {std::pair("bos_token_id", ids.bos), std::pair("eos_token_id", ids.eos), std::pair("pad_token_id", ids.pad)}) {
      if (id) config[key] = *id;
    }
    if (asked.type == "t5" && ids.pad) config["decoder_start_token_id"] = *ids.pad;
  }
  // RoBERTa counts positions from behind the padding's on.
  if (asked.type == "roberta" && asked.positions > 0) {
    set(names.positions, asked.positions + config.value("pad_token_id", int64_t{1}) + 1);
  }
  set("vocab_size", asked.vocab > 0 ? asked.vocab : tokenizer != nullptr ? tokenizer->vocab_size() : 0);
  return config;
}

std::unique_ptr<models::Model> read_sizes(const models::ModelType& type, const models::ModelConfig& config) {
  try {
    return type.read(config, type.classes.front());
  } catch (const Error& error) {
    throw Error(ErrorKind::kUsage, {error.report().what, "tessera init-model", "choose sizes that go together"});
  }
}

// One tensor is in memory at a time.
int64_t write_weights(const models::Model& model, uint64_t seed, const fs::path& path) {
  const at::NoGradGuard no_grad;
  const auto network = model.network();
  std::vector<storage::PlannedTensor> plan;
  std::set<const void*> seen;  // a shared one is written once, under its first name
  int64_t count = 0;
  for (const auto& item : network->named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    plan.push_back({item.key(), at::kFloat, item.value().sizes().vec()});
    count += item.value().numel();
  }
  storage::SafetensorsWriter writer(path.string(), plan, {{"format", "pt"}});
  for (const storage::PlannedTensor& tensor : plan) {
    const at::Tensor value = at::empty(tensor.shape);
    model.initialize(seed, tensor.name, value);
    writer.add(value);
  }
  writer.finish();
  return count;
}

}  // namespace

std::string init_model(const InitModel& asked) {
  const models::ModelType& type = models::models().table().find(asked.type, "--type", ErrorKind::kUsage).make;
  if (fs::exists(asked.output)) {
    throw Error(ErrorKind::kUsage, {"the folder is there already", asked.output, "choose another, or remove it"});
  }
  if (asked.output.empty()) {
    throw Error(ErrorKind::kUsage, {"the folder to make has no name", "OUTPUT", "name one that does not exist yet"});
  }
  const auto tokenizer = asked.tokenizer.empty() ? nullptr : data::load_tokenizer(asked.tokenizer);
  if (tokenizer && asked.vocab > 0) data::require_vocabulary(*tokenizer, asked.tokenizer, asked.vocab, "--vocab");
  ordered_json config = config_of(asked, tokenizer.get());
  const models::ModelClass& as = type.classes.front();
  config["architectures"] = {as.name};
  const fs::path aside = storage::aside_of(asked.output);
  const auto model = read_sizes(type, {.values = nlohmann::json(config), .path = (aside / "config.json").string()});
  storage::create_aside(asked.output);
  try {
    write_file_atomically(aside / "config.json", config.dump(2) + "\n");
    const int64_t count = write_weights(*model, asked.seed, aside / "model.safetensors");
    for (const std::string& file : tokenizer ? tokenizer->files() : std::vector<std::string>()) {
      fs::copy_file(file, aside / fs::path(file).filename());
    }
    storage::publish(asked.output);
    return fmt::format("{}: a {} of {} parameters", asked.output, as.name, format_count(count));
  } catch (...) {
    storage::abandon(asked.output);
    throw;
  }
}

}  // namespace tessera::train

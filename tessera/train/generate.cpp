#include "tessera/train/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/data/tokenizer.h"
#include "tessera/models/adapters.h"
#include "tessera/models/generation.h"
#include "tessera/models/initial_values.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

at::ScalarType dtype_of(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  throw Error(ErrorKind::kUsage, {"there is no dtype '" + name + "'", "--dtype", "use fp32 or bf16"});
}

std::shared_ptr<models::CausalNetwork> load_network(const models::Model& model, const GenerateOptions& options) {
  const auto network = std::dynamic_pointer_cast<models::CausalNetwork>(model.network());
  if (network == nullptr) {
    throw Error(ErrorKind::kUsage, {"the model does not generate", options.model, "use a causal language model"});
  }
  models::InitialValues values(model, *network, options.model, options.seed, options.adapter);
  nn::materialize(
      *network, [&](const std::string& name, at::Tensor value) { values.fill(name, std::move(value)); },
      dtype_of(options.dtype));
  values.report();
  network->eval();
  return network;
}

// Where the model is an adapter's folder: its model and the adapter apart.
GenerateOptions with_base(GenerateOptions options) {
  if (!models::is_peft_folder(options.model) || !options.adapter.empty()) return options;
  options.adapter = std::exchange(options.model, models::base_of(options.model));
  return options;
}

// A number, or a list of them.
void add_ids(const json& ids, const std::string& path, std::vector<int32_t>& stop_tokens) {
  if (ids.is_array()) {
    for (const json& id : ids) add_ids(id, path, stop_tokens);
  } else if (!ids.is_null()) {
    stop_tokens.push_back(json_value<int32_t>(json{{"eos_token_id", ids}}, "eos_token_id", 0, path));
  }
}

// Of generation_config.json, else config.json, else the tokenizer.
std::vector<int32_t> stop_tokens_of(const std::string& folder, const data::Tokenizer& tokenizer) {
  std::vector<int32_t> stop_tokens;
  for (const char* const name : {"generation_config.json", "config.json"}) {
    const std::string path = (fs::path(folder) / name).string();
    if (stop_tokens.empty() && fs::exists(path))
      add_ids(read_json_file(path).value("eos_token_id", json()), path, stop_tokens);
  }
  const auto eos = tokenizer.special_ids().eos;
  if (stop_tokens.empty() && eos) stop_tokens.push_back(static_cast<int32_t>(*eos));
  return stop_tokens;
}

// Prints a text as its tokens come; what may be half a character waits for the next.
class Printer {
 public:
  Printer(const data::Tokenizer& tokenizer, const std::vector<int32_t>& prompt)
      : tokenizer_(tokenizer), ids_(prompt), printed_(tokenizer.decode(ids_, /*skip_special=*/true).size()) {}

  void add(int32_t token) {
    ids_.push_back(token);
    const std::string text = tokenizer_.decode(ids_, /*skip_special=*/true);
    if (!text.ends_with("\uFFFD")) print(text);
  }
  void finish() {
    print(tokenizer_.decode(ids_, /*skip_special=*/true));
    std::fputc('\n', stdout);
  }

 private:
  void print(const std::string& text) {
    if (text.size() <= printed_) return;
    std::fputs(text.c_str() + printed_, stdout);
    std::fflush(stdout);
    printed_ = text.size();
  }

  const data::Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t printed_;  // bytes of the text so far
};

std::vector<int32_t> framed(const data::Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids = tokenizer.frame().before;
  const std::vector<int32_t> own = tokenizer.encode(text);
  ids.insert(ids.end(), own.begin(), own.end());
  return ids;
}

int64_t new_tokens(int64_t prompt, int64_t most, const GenerateOptions& options) {
  constexpr int64_t kNewTokens = 128;
  const int64_t wanted = options.max_new_tokens > 0 ? options.max_new_tokens : 1;
  if (most > 0 && prompt + wanted > most) {
    throw Error(ErrorKind::kUsage,
                {fmt::format("the prompt's {} tokens and {} new ones are more than the {} that the model takes", prompt,
                             wanted, most),
                 "tessera generate", "give a shorter prompt, or a smaller --max-new-tokens"});
  }
  if (options.max_new_tokens > 0) return options.max_new_tokens;
  return most > 0 ? std::min(kNewTokens, most - prompt) : kNewTokens;
}

}  // namespace

void generate_text(const GenerateOptions& asked) {
  const GenerateOptions options = with_base(asked);
  auto found = models::read_model(options.model, "CausalLM", "tessera generate runs");
  if (!options.adapter.empty()) {
    const models::PeftFolder adapter = models::read_peft_folder(options.adapter);
    found.model = models::with_adapter(std::move(found.model), adapter.options, options.adapter);
  }
  const auto tokenizer = data::load_tokenizer(options.tokenizer.empty() ? options.model : options.tokenizer);
  const auto network = load_network(*found.model, options);
  models::GenerationOptions how{.stop_tokens = stop_tokens_of(options.model, *tokenizer),
                                .temperature = options.temperature,
                                .top_k = options.top_k,
                                .top_p = options.top_p,
                                .seed = options.seed,
                                .beams = options.beams};
  for (const std::string& prompt : options.prompts) {
    const std::vector<int32_t> ids = framed(*tokenizer, prompt);
    how.max_new_tokens = new_tokens(static_cast<int64_t>(ids.size()), found.model->max_positions(), options);
    Printer printer(*tokenizer, ids);
    std::fputs(prompt.c_str(), stdout);
    how.on_token = [&](int32_t token) { printer.add(token); };
    models::generate(*network, ids, how);
    printer.finish();
  }
}

}  // namespace tessera::train

#include "tessera/train/generation_config.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/base/log.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A number, or a list of them.
void add_ids(const json& ids, const std::string& path, std::vector<int32_t>& stop_tokens) {
  if (ids.is_array()) {
    for (const json& id : ids) add_ids(id, path, stop_tokens);
  } else if (!ids.is_null()) {
    stop_tokens.push_back(json_value<int32_t>(json{{"eos_token_id", ids}}, "eos_token_id", 0, path));
  }
}

// By the value that leaves tokens as they are.
std::vector<std::string> not_honoured(const json& values, const std::string& path) {
  struct Key {
    const char* name;
    json without;
  };
  static const Key kKeys[] = {{"repetition_penalty", 1.0},
                              {"encoder_repetition_penalty", 1.0},
                              {"no_repeat_ngram_size", 0},
                              {"min_length", 0},
                              {"min_new_tokens", 0},
                              {"forced_bos_token_id", nullptr},
                              {"forced_eos_token_id", nullptr},
                              {"suppress_tokens", nullptr},
                              {"begin_suppress_tokens", nullptr},
                              {"bad_words_ids", nullptr},
                              {"sequence_bias", nullptr}};
  std::vector<std::string> doubts;
  for (const auto& [name, without] : kKeys) {
    const json value = values.value(name, json());
    if (!value.empty() && value != without) doubts.push_back(fmt::format("{}: '{}' is not honoured", path, name));
  }
  return doubts;
}

}  // namespace

void report_doubts(const GenerationConfig& config, int rank) {
  if (rank != 0) return;
  for (const std::string& doubt : config.doubts) log_warning("{}", doubt);
}

GenerationConfig read_generation_config(const std::string& folder, const data::Tokenizer& tokenizer) {
  GenerationConfig config;
  const std::string own = (fs::path(folder) / "generation_config.json").string();
  for (const std::string& path : {own, (fs::path(folder) / "config.json").string()}) {
    if (!fs::exists(path)) continue;
    const json values = read_json_file(path);
    if (config.stop_tokens.empty()) add_ids(values.value("eos_token_id", json()), path, config.stop_tokens);
    if (path != own) continue;
    config.doubts = not_honoured(values, path);
    const auto start = json_value<int64_t>(values, "decoder_start_token_id", -1, path);
    if (start >= 0) config.decoder_start = start;
  }
  const auto eos = tokenizer.special_ids().eos;
  if (config.stop_tokens.empty() && eos) config.stop_tokens.push_back(static_cast<int32_t>(*eos));
  return config;
}

}  // namespace tessera::train

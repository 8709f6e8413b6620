// Byte-pair encoding from the files of a folder: tokenizer.json, else GPT-2's vocab.json and merges.txt.
#include <fmt/format.h>

#include <fstream>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/json_value.h"
#include "tessera/data/bpe.h"
#include "tessera/data/subword_tokenizer.h"
#include "tessera/data/tokenizer_files.h"
#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

using nlohmann::json;

constexpr const char* kEndOfText = "<|endoftext|>";  // GPT-2's only special token

[[noreturn]] void refuse(const std::string& what, const std::string& path) {
  throw Error(ErrorKind::kData, {what, path, "check the file, or get it again"});
}

// As words are: of a byte-level vocabulary the bytes that a token stands for. Nothing where it stands for none.
std::optional<std::string> as_word(const std::string& token, bool of_bytes) {
  return of_bytes ? bytes_of_byte_level(token) : std::optional(token);
}

void read_vocabulary(const json& vocabulary, const std::string& path, BpeOptions& options) {
  if (!vocabulary.is_object() || vocabulary.empty()) refuse("the model has no vocabulary", path);
  for (const auto& [token, id] : vocabulary.items()) {
    if (auto word = as_word(token, options.of_bytes))
      options.vocabulary.emplace(*std::move(word), read_id(id, token, path));
  }
}

void add_merge(const std::string& left, const std::string& right, const std::string& path, BpeOptions& options) {
  auto first = as_word(left, options.of_bytes), second = as_word(right, options.of_bytes);
  if (!first || !second) refuse(fmt::format("the merge '{:.50} {:.50}' is none of bytes", left, right), path);
  options.merges.emplace_back(*std::move(first), *std::move(second));
}

// "a b", as transformers 4 wrote it, or ["a", "b"].
void read_merges(const json& merges, const std::string& path, BpeOptions& options) {
  if (!merges.is_array()) refuse("the model has no list of merges", path);
  for (const json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_merge(merge[0].get<std::string>(), merge[1].get<std::string>(), path, options);
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : std::string();
    const size_t blank = text.find(' ');
    if (blank == std::string::npos) refuse(fmt::format("{:.100} is not a merge", merge.dump()), path);
    add_merge(text.substr(0, blank), text.substr(blank + 1), path, options);
  }
}

void read_merges_txt(const std::string& path, BpeOptions& options) {
  std::ifstream file = open_input_file(path);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.starts_with("#version") || line.empty()) continue;
    if (line.back() == '\r') line.pop_back();
    const size_t blank = line.find(' ');
    if (blank == std::string::npos) refuse("this line is not a merge", fmt::format("{}:{}", path, number));
    add_merge(line.substr(0, blank), line.substr(blank + 1), fmt::format("{}:{}", path, number), options);
  }
  require_read_whole(file, path);
}

BpeOptions read_model(const json& model, bool of_bytes, const std::string& path) {
  BpeOptions options{.of_bytes = of_bytes,
                     .byte_fallback = json_value(model, "byte_fallback", false, path),
                     .fuse_unknown = json_value(model, "fuse_unk", false, path),
                     .ignore_merges = json_value(model, "ignore_merges", false, path),
                     .unknown = json_value(model, "unk_token", std::string(), path),
                     .inner_prefix = json_value(model, "continuing_subword_prefix", std::string(), path),
                     .end_suffix = json_value(model, "end_of_word_suffix", std::string(), path)};
  if (json_value(model, "dropout", 0.0, path) != 0) {
    throw Error(ErrorKind::kData, {"the model drops merges at random (dropout), which is not supported", path,
                                   "write null for its dropout"});
  }
  read_vocabulary(model.value("vocab", json()), path, options);
  read_merges(model.value("merges", json()), path, options);
  return options;
}

SubwordParts bpe_of_json(const TokenizerFolder& folder) {
  const std::string path = folder.tokenizer_path();
  PreTokenizer pre_tokenizer(folder.tokenizer.value("pre_tokenizer", json()), path);
  const bool of_bytes = pre_tokenizer.is_byte_level();
  auto model = std::make_unique<Bpe>(read_model(folder.tokenizer.at("model"), of_bytes, path), path);
  return parts_of_json(folder, std::move(pre_tokenizer), std::move(model));
}

SubwordParts bpe_of_gpt2_files(const TokenizerFolder& folder) {
  BpeOptions options{.of_bytes = true};
  read_vocabulary(read_json_file(folder.vocab_json_path), folder.vocab_json_path, options);
  read_merges_txt(folder.merges_path, options);
  const json pre_tokenizer = {
      {"type", "ByteLevel"},
      {"add_prefix_space", json_value(folder.config, "add_prefix_space", false, folder.config_path())}};
  SubwordParts parts{.normalize = {},
                     .pre_tokenizer = PreTokenizer(pre_tokenizer, folder.path),
                     .model = std::make_unique<Bpe>(std::move(options), folder.merges_path),
                     .decode = make_decoder({{"type", "ByteLevel"}}, folder.path),
                     .added_tokens = {},
                     .special_ids = {},
                     .frame = {},
                     .files = folder.files};
  const bool has_end = parts.model->vocabulary().contains(std::string_view(kEndOfText));
  read_special_ids(folder, has_end ? kEndOfText : "", parts);
  for (const char* const key : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const std::string token = read_special_token(folder, key, has_end ? kEndOfText : "");
    if (!token.empty()) {
      parts.added_tokens.push_back({.content = decode_utf8(token), .id = *special_id(token, parts), .special = true});
    }
  }
  return parts;
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe(const TokenizerFolder& folder) {
  return std::make_unique<SubwordTokenizer>(folder.tokenizer.is_null() ? bpe_of_gpt2_files(folder)
                                                                       : bpe_of_json(folder));
}

}  // namespace tessera::data

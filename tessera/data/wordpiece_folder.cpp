// WordPiece from the files of a folder: tokenizer.json, else vocab.txt with tokenizer_config.json.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_value.h"
#include "tessera/data/tokenizer_files.h"
#include "tessera/data/tokenizers.h"
#include "tessera/data/unicode.h"
#include "tessera/data/wordpiece.h"

namespace tessera::data {

namespace {

using nlohmann::json;

// A member of an object in a file, for messages that name both.
struct Place {
  const json& object;
  std::string path;  // the file
};

template <class Value>
Value read(const Place& place, const char* key, Value otherwise) {
  return json_value(place.object, key, std::move(otherwise), place.path);
}

void check_part(const json& part, const char* role, const char* supported, const std::string& path) {
  const std::string type = part.is_object() ? part.value("type", json("nothing")).dump() : std::string("nothing");
  if (type == fmt::format("\"{}\"", supported)) return;
  throw Error(ErrorKind::kData,
              {fmt::format("the {} is {}", role, type), path, fmt::format("only {} is supported", supported)});
}

BertNormalizerOptions read_normalizer(const json& part, const std::string& path) {
  if (part.is_null())
    return {.clean_text = false, .handle_chinese_chars = false, .strip_accents = false, .lowercase = false};
  check_part(part, "normalizer", "BertNormalizer", path);
  const Place place{part, path};
  BertNormalizerOptions options;
  options.clean_text = read(place, "clean_text", true);
  options.handle_chinese_chars = read(place, "handle_chinese_chars", true);
  options.lowercase = read(place, "lowercase", true);
  options.strip_accents = read(place, "strip_accents", options.lowercase);
  return options;
}

WordPieceOptions read_tokenizer_json(const TokenizerFolder& folder) {
  const std::string path = folder.tokenizer_path();
  const json& root = folder.tokenizer;
  check_part(root.value("pre_tokenizer", json()), "pre_tokenizer", "BertPreTokenizer", path);

  WordPieceOptions options;
  options.normalizer = read_normalizer(root.value("normalizer", json()), path);
  options.added_tokens = read_added_tokens(root.value("added_tokens", json::array()), path);
  const Place model{root.at("model"), path};
  options.continuing_subword_prefix = read(model, "continuing_subword_prefix", options.continuing_subword_prefix);
  options.max_input_chars_per_word = read(model, "max_input_chars_per_word", options.max_input_chars_per_word);
  options.clean_up = json_value(root.value("decoder", json()), "cleanup", true, path);
  const json vocabulary = model.object.value("vocab", json());
  if (!vocabulary.is_object() || vocabulary.empty())
    throw Error(ErrorKind::kData, {"the model has no vocabulary", path, ""});
  for (const auto& [piece, id] : vocabulary.items()) options.vocabulary.emplace(piece, read_id(id, piece, path));
  return options;
}

// The id of a token is the number of its line, from 0.
WordPieceOptions read_vocab_txt(const TokenizerFolder& folder) {
  WordPieceOptions options;
  std::ifstream file = open_input_file(folder.vocab_path);
  std::string line;
  for (int32_t id = 0; std::getline(file, line); ++id) {
    if (find_ill_formed_utf8(line)) {
      throw Error(ErrorKind::kData, {"this line is not valid UTF-8", fmt::format("{}:{}", folder.vocab_path, id + 1),
                                     "download the file again"});
    }
    line.erase(line.find_last_not_of(" \t\r") + 1);
    options.vocabulary.insert_or_assign(line, id);
  }
  require_read_whole(file, folder.vocab_path);
  if (options.vocabulary.empty()) throw Error(ErrorKind::kData, {"the vocabulary is empty", folder.vocab_path, ""});

  const Place config{folder.config, folder.config_path()};
  options.normalizer.lowercase = read(config, "do_lower_case", true);
  options.normalizer.handle_chinese_chars = read(config, "tokenize_chinese_chars", true);
  options.normalizer.strip_accents = read(config, "strip_accents", options.normalizer.lowercase);
  return options;
}

int32_t id_of(const WordPieceOptions& options, const std::string& token, const std::string& path) {
  const auto content = decode_utf8(token);
  for (const AddedToken& added : options.added_tokens) {
    if (added.content == content) return added.id;
  }
  const auto found = options.vocabulary.find(token);
  if (found != options.vocabulary.end()) return found->second;
  throw Error(ErrorKind::kData, {fmt::format("the vocabulary has no special token '{}'", token), path,
                                 "use a BERT model's vocabulary, or name its special tokens in tokenizer_config.json"});
}

void read_special_ids(const TokenizerFolder& folder, const std::string& unk_token, WordPieceOptions& options) {
  const std::string path = folder.tokenizer.is_null() ? folder.vocab_path : folder.tokenizer_path();
  const auto id = [&](const char* key, const std::string& otherwise) {
    return id_of(options, read_special_token(folder, key, otherwise), path);
  };
  options.special_ids = {.cls = id("cls_token", "[CLS]"),
                         .sep = id("sep_token", "[SEP]"),
                         .pad = id("pad_token", "[PAD]"),
                         .mask = id("mask_token", "[MASK]"),
                         .unk = unk_token.empty() ? id("unk_token", "[UNK]") : id_of(options, unk_token, path)};
}

// vocab.txt has no list of added tokens: the special tokens are those that are cut out of a text.
void add_special_tokens(const TokenizerFolder& folder, WordPieceOptions& options) {
  const Place config{folder.config, folder.config_path()};
  std::vector<std::string> names;
  for (const auto& [key, name] :
       {std::pair("unk_token", "[UNK]"), std::pair("sep_token", "[SEP]"), std::pair("pad_token", "[PAD]"),
        std::pair("cls_token", "[CLS]"), std::pair("mask_token", "[MASK]")}) {
    names.push_back(read_special_token(folder, key, name));
  }
  for (const std::string& name : read(config, "additional_special_tokens", std::vector<std::string>()))
    names.push_back(name);
  for (const std::string& name : names) {
    options.added_tokens.push_back(
        {.content = decode_utf8(name), .id = id_of(options, name, folder.vocab_path), .special = true});
  }
}

}  // namespace

std::unique_ptr<Tokenizer> make_wordpiece(const TokenizerFolder& folder) {
  const bool from_json = !folder.tokenizer.is_null();
  WordPieceOptions options = from_json ? read_tokenizer_json(folder) : read_vocab_txt(folder);
  if (!from_json) add_special_tokens(folder, options);
  const std::string unk_token =
      from_json ? read(Place{folder.tokenizer.at("model"), folder.tokenizer_path()}, "unk_token", std::string("[UNK]"))
                : "";
  read_special_ids(folder, unk_token, options);
  options.files = folder.files;
  return std::make_unique<WordPiece>(std::move(options));
}

}  // namespace tessera::data

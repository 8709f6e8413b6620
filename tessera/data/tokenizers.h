// The tokenizer models that can be asked for, by the "type" of the "model" in tokenizer.json. A folder with a vocab.txt
// and no tokenizer.json is a WordPiece, one with vocab.json and merges.txt a BPE, one with a tokenizer.model or
// spiece.model SentencePiece's. To add one: a file that reads
// TokenizerFolder into a Tokenizer, a declaration here and a line in tokenizers.cpp.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

// What lies in the folder. A file that is not there is an empty string or a null.
struct TokenizerFolder {
  std::string path;
  nlohmann::json tokenizer;        // tokenizer.json
  nlohmann::json config;           // tokenizer_config.json
  std::string vocab_path;          // vocab.txt
  std::string vocab_json_path;     // vocab.json
  std::string merges_path;         // merges.txt
  std::string sentencepiece_path;  // tokenizer.model or spiece.model
  std::vector<std::string> files;  // all that there are
  std::string tokenizer_path() const { return path + "/tokenizer.json"; }
  std::string config_path() const { return path + "/tokenizer_config.json"; }
};

using MakeTokenizer = std::unique_ptr<Tokenizer> (*)(const TokenizerFolder& folder);
Registry<MakeTokenizer> tokenizers();

std::unique_ptr<Tokenizer> make_bpe(const TokenizerFolder& folder);            // bpe_folder.cpp
std::unique_ptr<Tokenizer> make_sentencepiece(const TokenizerFolder& folder);  // sentencepiece_folder.cpp
std::unique_ptr<Tokenizer> make_unigram(const TokenizerFolder& folder);        // unigram_folder.cpp
std::unique_ptr<Tokenizer> make_wordpiece(const TokenizerFolder& folder);      // wordpiece_folder.cpp

}  // namespace tessera::data

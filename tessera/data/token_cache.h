// Tokenised samples in a folder, so that a text is tokenised once, and need not fit into memory.
//
//   <folder>/<key>/tokens.bin    int32, little-endian
//                  offsets.bin   uint64: where each sample begins, then where the last ends
//                  targets.bin   a byte a token, 1 where it is to be predicted; only where samples say so
//                  facts.json    what tokenising found out, the sizes and checksums of the others, and its own
//
// The key is a hash of all that decides the samples: the bytes of the texts' files and of the tokenizer's, the options,
// the version. So it changes when any of these does, and files that are moved or touched stay known. A folder appears
// whole or not at all. Of several processes that want one that is not there, one makes it and the others wait.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"

namespace tessera::data {

// What decides the samples.
struct TokenKey {
  std::vector<std::string> files;  // in order: of texts, of the tokenizer
  nlohmann::json options;          // everything else
};

// Of texts in files: those and the tokenizer's, and by what the former are read. `options`: all that is said beside
// them, the kind of dataset included, so that no two have the same key.
TokenKey key_of_texts(const std::vector<std::string>& files, const Tokenizer& tokenizer, nlohmann::json options);

// Counts, among the facts.
nlohmann::json to_facts(const TextCounts& counts);
TextCounts text_counts_of(const nlohmann::json& facts);

struct CachedTokens {
  TokenSamples samples;
  nlohmann::json facts;  // what `tokenize` returned
};

// Of the folder, or made by `tokenize`, which adds samples to the sink and returns what else is to be kept. What is
// there but damaged is made anew, and a warning says so. `what`: for messages, "data.train".
//
// ErrorKind::kMachine where the folder cannot be written; ErrorKind::kPeer where another process that makes the samples
// gets no further for TESSERA_TIMEOUT seconds. Throws what `tokenize` throws.
CachedTokens cached_tokens(const std::string& folder, const TokenKey& key, const std::string& what,
                           const std::function<nlohmann::json(TokenSink& sink)>& tokenize);

// What `tokenize` gives, into `samples`: by way of the folder (cached_tokens), or in memory where that is empty; then
// nobody asks for the key. Returns the facts.
nlohmann::json keep_tokens(TokenSamples& samples, const std::string& folder, const std::string& what,
                           const std::function<TokenKey()>& key,
                           const std::function<nlohmann::json(TokenSink& sink)>& tokenize);

}  // namespace tessera::data

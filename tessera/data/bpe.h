// Byte-pair encoding (Sennrich et al. 2016): a word begins as its characters or bytes; of the pairs that the merges
// name, the one that was learned first becomes one token, until there is none.
//
//   merges  h e · l l · he ll        "hell" -> h e l l -> he l l -> he ll -> hell
//
// Immutable; safe to use from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/data/string_map.h"
#include "tessera/data/word_model.h"

namespace tessera::data {

struct BpeOptions {
  StringMap<int32_t> vocabulary;                            // of byte-level words: bytes
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  bool of_bytes = false;                                    // words begin as bytes, else as characters
  bool byte_fallback = false;  // a character without a token is its bytes' tokens, "<0xE2>"
  bool fuse_unknown = false;   // neighbours without a token are one unknown token
  bool ignore_merges = false;  // a word that is a token is that, whatever the merges lead to
  std::string unknown;         // empty: characters without a token vanish
  std::string inner_prefix;    // of tokens inside a word
  std::string end_suffix;      // of tokens that end one
};

class Bpe final : public WordModel {
 public:
  // ErrorKind::kData where a merge, or the unknown token, is not of the vocabulary; `path`: the file, for the message.
  Bpe(BpeOptions options, const std::string& path);

  void encode(std::string_view word, std::vector<int32_t>& ids) const override;
  // A character that vanishes leaves no gap: those behind it move up, as in the `tokenizers` package.
  std::vector<WordToken> encode_with_places(std::string_view word) const override;
  const StringMap<int32_t>& vocabulary() const override { return options_.vocabulary; }

 private:
  struct Merge {
    int32_t rank, id;
  };
  struct PairHash {
    size_t operator()(uint64_t pair) const { return pair * 0x9e3779b97f4a7c15 >> 7; }
  };

  // Tokens of a word, and where somebody asks how many bytes of it each stands for.
  struct Symbols {
    std::vector<int32_t> ids;
    std::vector<size_t>* lengths = nullptr;

    void add(int32_t id, size_t length) {
      ids.push_back(id);
      if (lengths != nullptr) lengths->push_back(length);
    }
  };
  Symbols symbols_of(std::string_view word, std::vector<size_t>* lengths) const;
  void add_characters(std::string_view word, Symbols& symbols) const;
  bool add_bytes(std::string_view character, Symbols& symbols) const;
  void merge_short(Symbols& symbols) const;
  void merge_long(Symbols& symbols) const;
  const Merge* merge_of(int32_t left, int32_t right) const;

  BpeOptions options_;
  std::unordered_map<uint64_t, Merge, PairHash> merges_;  // by the two ids
  std::optional<int32_t> unknown_;
  std::vector<int32_t> byte_ids_;  // of each byte: its token in a byte-level vocabulary or for byte_fallback; -1: none
};

}  // namespace tessera::data

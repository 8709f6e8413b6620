// A tokenizer whose model is byte-pair encoding (bpe.h): added tokens are cut out, the rest is normalised, cut into
// words (tokenizer_parts.h), and each word becomes its pieces. Words that came before are remembered, up to a bound.
//
// Safe to use from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/added_tokens.h"
#include "tessera/data/bpe.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/tokenizer_parts.h"

namespace tessera::data {

struct BpeTokenizerParts {
  NormalizeText normalize;  // empty: none
  PreTokenizer pre_tokenizer;
  std::unique_ptr<Bpe> model;
  DecodeTokens decode;
  std::vector<AddedToken> added_tokens;
  SpecialIds special_ids;
  SampleFrame frame;
  std::vector<std::string> files;
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeTokenizerParts parts);
  ~BpeTokenizer() override;

  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(special_.size()); }
  const SpecialIds& special_ids() const override { return parts_.special_ids; }
  bool is_special(int32_t id) const override {
    return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
  }
  const SampleFrame& frame() const override { return parts_.frame; }
  std::vector<std::string> files() const override { return parts_.files; }

 private:
  class Cache;
  void encode_text(std::string text, bool is_first, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

  BpeTokenizerParts parts_;
  AddedTokens raw_tokens_;           // looked for in the text as given
  AddedTokens normalized_tokens_;    // looked for after normalisation
  std::vector<bool> special_;        // (vocab_size)
  std::vector<std::string> tokens_;  // by id; empty where there is none
  std::unique_ptr<Cache> cache_;
};

}  // namespace tessera::data

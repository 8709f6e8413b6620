// A tokenizer in parts, as a tokenizer.json has them: added tokens are cut out, the rest is normalised, cut into words
// (tokenizer_parts.h), and a model makes pieces of each word (word_model.h). Words that came before are remembered, up
// to a bound.
//
// Safe to use from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/added_tokens.h"
#include "tessera/data/tokenizer.h"
#include "tessera/data/tokenizer_parts.h"
#include "tessera/data/tokenizers.h"
#include "tessera/data/word_model.h"

namespace tessera::data {

struct SubwordParts {
  Normalizer normalize;  // empty: none
  PreTokenizer pre_tokenizer;
  std::unique_ptr<WordModel> model;
  DecodeTokens decode;
  std::vector<AddedToken> added_tokens;
  SpecialIds special_ids;
  SampleFrame frame;
  std::optional<PairFrame> pair_frame = std::nullopt;
  std::vector<bool> offset_trims = {};  // make_offset_trims()
  std::vector<std::string> files;
};

// In characters of the text; of an added token, also what stood there for it.
struct PlacedToken {
  int32_t id = 0;
  CharacterRange place;
  std::optional<std::u32string> added = std::nullopt;
};

class SubwordTokenizer final : public Tokenizer {
 public:
  explicit SubwordTokenizer(SubwordParts parts);
  ~SubwordTokenizer() override;

  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<TokenPlace> encode_with_offsets(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(special_.size()); }
  const SpecialIds& special_ids() const override { return parts_.special_ids; }
  bool is_special(int32_t id) const override {
    return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
  }
  const SampleFrame& frame() const override { return parts_.frame; }
  std::optional<PairFrame> pair_frame() const override { return parts_.pair_frame; }
  std::vector<std::string> files() const override { return parts_.files; }

 private:
  class Cache;
  void encode_text(std::string text, bool is_first, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  void encode_text(AlignedText text, bool is_first, std::vector<PlacedToken>& tokens) const;
  void trim(std::vector<PlacedToken>& tokens) const;

  SubwordParts parts_;
  AddedTokens raw_tokens_;           // looked for in the text as given
  AddedTokens normalized_tokens_;    // looked for after normalisation
  std::vector<bool> special_;        // (vocab_size)
  std::vector<std::string> tokens_;  // by id; empty where there is none
  std::unique_ptr<Cache> cache_;
};

// The id of a special token; nothing where there is none of that name.
std::optional<int32_t> special_id(const std::string& token, const SubwordParts& parts);

// Reads the special tokens that tokenizer_config.json names. `otherwise`: that of a text's beginning, its end and of
// what is unknown, where it does not name one. ErrorKind::kData for one that is not in the vocabulary.
void read_special_ids(const TokenizerFolder& folder, const std::string& otherwise, SubwordParts& parts);

// What a tokenizer.json says beside its model. pre_tokenizer: which the model may depend on.
SubwordParts parts_of_json(const TokenizerFolder& folder, PreTokenizer pre_tokenizer, std::unique_ptr<WordModel> model);

}  // namespace tessera::data

// WordPiece (Wu et al. 2016) as BERT uses it: added tokens are cut out, the rest is normalised, split at whitespace and
// around punctuation, and each word is covered from the left by the longest pieces in the vocabulary; pieces inside a
// word carry a prefix. A word that cannot be covered, or is longer than max_input_chars_per_word, is one [UNK].
//
//   "unaffable" -> un ##aff ##able
//
// Immutable; safe to use from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/added_tokens.h"
#include "tessera/data/bert_normalizer.h"
#include "tessera/data/string_map.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

using Vocabulary = StringMap<int32_t>;

// All that a folder says about a WordPiece tokenizer.
struct WordPieceOptions {
  Vocabulary vocabulary;
  BertNormalizerOptions normalizer;
  std::string continuing_subword_prefix = "##";
  int64_t max_input_chars_per_word = 100;
  bool clean_up = true;  // of decoded text: no space before punctuation and what is cut off in English
  std::vector<AddedToken> added_tokens;
  SpecialIds special_ids;  // each of them
  std::vector<std::string> files;
};

class WordPiece final : public Tokenizer {
 public:
  explicit WordPiece(WordPieceOptions options);

  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<TokenPlace> encode_with_offsets(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(special_.size()); }
  const SpecialIds& special_ids() const override { return options_.special_ids; }
  bool is_special(int32_t id) const override;
  const SampleFrame& frame() const override { return frame_; }
  std::optional<PairFrame> pair_frame() const override;
  std::vector<std::string> files() const override { return options_.files; }

 private:
  void encode_words(std::u32string_view normalized, std::vector<int32_t>& ids) const;
  // ends: where somebody asks for them, the ends of the pieces in the word, in characters.
  void encode_word(std::u32string_view word, std::vector<int32_t>& ids, std::vector<size_t>* ends = nullptr) const;
  void encode_text(const AlignedText& text, std::vector<TokenPlace>& tokens) const;  // places in characters

  WordPieceOptions options_;
  BertNormalizer normalizer_;
  AddedTokens raw_tokens_;           // looked for in the text as given
  AddedTokens normalized_tokens_;    // looked for after normalisation
  std::vector<bool> special_;        // (vocab_size)
  std::vector<std::string> tokens_;  // by id; empty where there is none
  SampleFrame frame_;
  size_t longest_piece_bytes_ = 0;
};

}  // namespace tessera::data

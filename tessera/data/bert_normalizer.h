// BERT's text normalisation, as BertNormalizer of the `tokenizers` package does it, in this order:
//
//   clean_text            drop control characters, U+0000 and U+FFFD; each kind of whitespace becomes a space
//   handle_chinese_chars  a space on both sides of each ideograph, so that each is a word
//   strip_accents         canonical decomposition (NFD), then drop nonspacing marks: "é" -> "e"
//   lowercase             character by character
//
// Immutable; safe to use from any thread.
#pragma once

#include <string>
#include <string_view>

#include "tessera/data/aligned_text.h"

namespace tessera::data {

struct BertNormalizerOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};

class BertNormalizer {
 public:
  explicit BertNormalizer(const BertNormalizerOptions& options) : options_(options) {}

  std::u32string normalize(std::u32string_view text) const;
  void normalize(AlignedText& text) const;  // the same

 private:
  BertNormalizerOptions options_;
};

}  // namespace tessera::data

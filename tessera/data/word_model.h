// What makes tokens of the words of a text: byte-pair encoding (bpe.h) or a unigram model (unigram.h).
//
// Immutable; safe to use from any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/data/string_map.h"

namespace tessera::data {

// A token and the part of the word that it stands for, in bytes.
struct WordToken {
  int32_t id = 0;
  size_t begin = 0, end = 0;
};

class WordModel {
 public:
  virtual ~WordModel() = default;

  // Appends the word's ids. The word is UTF-8, or bytes where the pre-tokenizer makes bytes.
  virtual void encode(std::string_view word, std::vector<int32_t>& ids) const = 0;

  // The same tokens.
  virtual std::vector<WordToken> encode_with_places(std::string_view word) const = 0;

  virtual const StringMap<int32_t>& vocabulary() const = 0;
};

}  // namespace tessera::data

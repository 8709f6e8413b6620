// SentencePiece's own normalisation (NFKC and more), compiled into one table: the "Precompiled" normalizer of a
// tokenizer.json. A trie in a double array (Aoe 1989) leads from characters to what they become.
//
// Applied as the `tokenizers` package does: to each grapheme cluster of fewer than 6 bytes as a whole, where the trie
// has a beginning of it, else to each of its characters.
//
// Immutable; safe to use from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/aligned_text.h"

namespace tessera::data {

class Charsmap {
 public:
  // bytes: the length of the trie in bytes (uint32, little-endian), the trie, and texts that each end with a zero byte.
  // ErrorKind::kData where they are damaged; `path`: the file, for the message.
  Charsmap(const std::string& bytes, const std::string& path);

  std::string normalize(const std::string& text) const;
  void normalize(AlignedText& text) const;  // the same

 private:
  // Calls visit(characters, what they become) for all of the text; nothing: they stay as they are.
  template <class Visit>
  void for_each_part(const std::string& text, const Visit& visit) const;
  std::optional<std::string_view> replacement(std::string_view characters) const;

  std::vector<uint32_t> trie_;
  std::string texts_;
};

}  // namespace tessera::data

// What holds of the places of any tokenizer's tokens in any text.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::fuzz {

// std::logic_error, which is a finding, where tokens with places are others than `ids`, or a place is not in the text.
inline void check_places(const data::Tokenizer& tokenizer, const std::string& text, const std::vector<int32_t>& ids) {
  std::vector<int32_t> placed;
  for (const auto& [id, begin, end] : tokenizer.encode_with_offsets(text)) {
    if (begin > end || end > text.size()) throw std::logic_error("a token lies outside of the text");
    placed.push_back(id);
  }
  if (placed != ids) throw std::logic_error("the tokens with places are others than without");
}

}  // namespace tessera::fuzz

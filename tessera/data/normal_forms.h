// Unicode's normal forms (UAX #15) of a text that remembers where it came from: decomposed, marks put in order, and
// for the composed forms composed again, character by character, as the `tokenizers` package counts them.
//
// Pure functions.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "tessera/data/aligned_text.h"

namespace tessera::data {

struct NormalForm {
  bool compatible = false;  // NFKC, NFKD
  bool composed = false;    // NFC, NFKC
  // Characters for which this is false stay as they are; empty: none.
  std::function<bool(char32_t)> knows;
};

// What the text becomes. For AlignedText::rewrite.
std::vector<CharacterChange> normal_form_changes(std::string_view text, const NormalForm& form);

}  // namespace tessera::data

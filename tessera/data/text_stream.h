// The text of tokens as they come, one by one: together it is what Tokenizer::decode makes of all. What may be half a
// character waits for the next token. The time is linear in the number of tokens.
//
//   TextStream stream(tokenizer);
//   for (const int32_t token : tokens) print(stream.add(token));
//   print(stream.finish());
//
// A token is decoded behind the last ones that had a text, because how it is written may depend on whether it is the
// first. Special tokens have no text. Bytes that are no UTF-8 may come out otherwise than decode() has them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

class TextStream {
 public:
  // Borrows the tokenizer. `before`: tokens whose text is known, and which the others go on from.
  explicit TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before = {});

  // What is certain by now and was not given yet.
  std::string add(int32_t token);

  // The rest.
  std::string finish();

 private:
  std::string text() const { return tokenizer_.decode(tokens_, /*skip_special=*/true); }
  std::string given(const std::string& text);

  const Tokenizer& tokenizer_;
  std::vector<int32_t> tokens_;  // the last that had a text, and those since
  size_t read_;                  // of them, how many have been given
  std::string given_;            // their text
};

}  // namespace tessera::data

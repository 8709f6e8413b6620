// Tokens that are cut out of a text whole, before words are looked for: "[MASK]" and whatever else the "added_tokens"
// of a tokenizer.json name. Where two could begin at one place the longer one wins.
//
// Immutable after construction; safe to use from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

struct AddedToken {
  std::u32string content;
  int32_t id = 0;
  bool special = false;
  bool normalized = false;   // looked for in the normalised text, else in the text as given
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the whitespace on its left with it
  bool rstrip = false;       // and on its right
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // All tokens are looked for, whatever their `normalized` says: the caller sorts them and normalises their content.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }

  // Calls visit(piece, nothing) for each stretch of ordinary text and visit(…, id) for each added token, in order.
  using Visitor = std::function<void(std::u32string_view piece, std::optional<int32_t> id)>;
  void split(std::u32string_view text, const Visitor& visit) const;

 private:
  const AddedToken* match_at(std::u32string_view text, size_t position) const;

  std::vector<AddedToken> tokens_;   // longest first
  std::u32string first_characters_;  // of all tokens
};

}  // namespace tessera::data

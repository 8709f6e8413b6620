// Characters as the `tokenizers` package sees them. Its tables are Unicode 8.0's while ICU's are newer, so a category
// is asked for "as of 8.0": a character assigned later has none. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

// One character a UTF-8 sequence; an ill-formed one gives U+FFFD.
std::u32string decode_utf8(std::string_view text);
void append_utf8(std::u32string_view text, std::string& bytes);

// Where each character of decode_utf8(text) begins, in bytes, and at last the end of the text.
std::vector<size_t> character_starts(std::string_view text);

// Bytes of a character whose UTF-8 sequence begins with this one.
size_t utf8_length(char first);

// The offset in bytes of the first ill-formed sequence.
std::optional<size_t> find_ill_formed_utf8(std::string_view text);

bool is_whitespace(char32_t c);       // property White_Space
bool is_python_space(char32_t c);     // at which Python's str.split() and strip() cut: U+001C to U+001F too
bool is_control(char32_t c);          // Cc, Cf or Co, but not tab, newline or carriage return
bool is_chinese(char32_t c);          // the CJK ideograph blocks that BERT isolates; not kana, not hangul
bool is_punctuation(char32_t c);      // a P category, or ASCII that is neither letter, digit, space nor control
bool is_nonspacing_mark(char32_t c);  // Mn
bool is_word_character(char32_t c);   // \w of a regular expression

}  // namespace tessera::data

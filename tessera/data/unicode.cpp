#include "tessera/data/unicode.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

namespace tessera::data {

namespace {

UChar32 code(char32_t c) { return static_cast<UChar32>(c); }

// The general category in Unicode 8.0, as a mask of U_GC_…_MASK. Five characters have changed theirs since; comparing
// all code points with tokenizers 0.23 showed no others that matter here.
uint32_t category_mask(char32_t c) {
  switch (c) {
    case 0x166D:
      return U_GC_PO_MASK;  // So since 12.0
    case 0x1734:
      return U_GC_MN_MASK;  // Mc since 14.0
    case 0x1885:
    case 0x1886:
      return U_GC_LO_MASK;  // Mn since 9.0
    case 0xA9BD:
      return U_GC_MC_MASK;  // Mn since 11.0
    case 0x111C9:
      return U_GC_PO_MASK;  // Mn since 11.0
    default:
      break;
  }
  UVersionInfo age;
  u_charAge(code(c), age);
  const bool newer = age[0] > 8;
  return newer ? U_GC_CN_MASK : U_GET_GC_MASK(code(c));
}

}  // namespace

std::u32string decode_utf8(std::string_view text) {
  std::u32string result;
  result.reserve(text.size());
  const size_t length = text.size();
  for (size_t i = 0; i < length;) {
    UChar32 c;
    U8_NEXT_OR_FFFD(text.data(), i, length, c);
    result.push_back(static_cast<char32_t>(c));
  }
  return result;
}

std::vector<size_t> character_starts(std::string_view text) {
  std::vector<size_t> starts;
  const size_t length = text.size();
  for (size_t i = 0; i < length;) {
    starts.push_back(i);
    U8_FWD_1(text.data(), i, length);
  }
  starts.push_back(length);
  return starts;
}

void append_utf8(std::u32string_view text, std::string& bytes) {
  for (const char32_t c : text) {
    char sequence[U8_MAX_LENGTH];
    size_t length = 0;
    U8_APPEND_UNSAFE(sequence, length, c);
    bytes.append(sequence, length);
  }
}

size_t utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

std::optional<size_t> find_ill_formed_utf8(std::string_view text) {
  const size_t length = text.size();
  for (size_t i = 0; i < length;) {
    const size_t start = i;
    UChar32 c;
    U8_NEXT(text.data(), i, length, c);
    if (c < 0) return start;
  }
  return std::nullopt;
}

bool is_whitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return u_hasBinaryProperty(code(c), UCHAR_WHITE_SPACE);
}

bool is_python_space(char32_t c) { return is_whitespace(c) || (c >= 0x1C && c <= 0x1F); }

bool is_control(char32_t c) {
  if (c < 0x80) return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F;
  return (category_mask(c) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) != 0;
}

bool is_chinese(char32_t c) {
  if (c < 0x3400) return false;
  return c <= 0x4DBF || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  return (category_mask(c) & U_GC_P_MASK) != 0;
}

bool is_nonspacing_mark(char32_t c) { return c >= 0x300 && (category_mask(c) & U_GC_MN_MASK) != 0; }

bool is_word_character(char32_t c) {
  return u_isUAlphabetic(code(c)) || c == 0x200C || c == 0x200D ||
         (U_GET_GC_MASK(code(c)) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

}  // namespace tessera::data

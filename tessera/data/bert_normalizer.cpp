#include "tessera/data/bert_normalizer.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/data/unicode.h"

namespace tessera::data {

namespace {

// NFD of Unicode 12.1, which is what `tokenizers` carries: a character assigned later stays as it is.
const icu::Normalizer2& nfd() {
  static const icu::UnicodeSet known = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet set(u"[:age=12.1:]", status);
    TESSERA_INVARIANT(U_SUCCESS(status));
    set.freeze();
    return set;
  }();
  static const icu::FilteredNormalizer2 normalizer = [] {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* full = icu::Normalizer2::getNFDInstance(status);
    TESSERA_INVARIANT(U_SUCCESS(status));
    return icu::FilteredNormalizer2(*full, known);
  }();
  return normalizer;
}

constexpr char32_t kFirstWithDecomposition = 0xC0;  // "À"; nothing below is changed by NFD, and no mark is below

std::u32string strip_accents(std::u32string text) {
  if (std::all_of(text.begin(), text.end(), [](char32_t c) { return c < kFirstWithDecomposition; })) return text;
  UErrorCode status = U_ZERO_ERROR;
  const auto given =
      icu::UnicodeString::fromUTF32(reinterpret_cast<const UChar32*>(text.data()), static_cast<int32_t>(text.size()));
  const icu::UnicodeString decomposed = nfd().normalize(given, status);
  TESSERA_INVARIANT(U_SUCCESS(status));
  std::u32string result;
  result.reserve(text.size());
  for (int32_t i = 0; i < decomposed.length();) {
    const auto c = static_cast<char32_t>(decomposed.char32At(i));
    i += U16_LENGTH(c);
    if (!is_nonspacing_mark(c)) result.push_back(c);
  }
  return result;
}

std::u32string lowercase(std::u32string text) {
  std::u32string result;
  result.reserve(text.size());
  for (const char32_t c : text) {
    if (c < 0x80) {
      result.push_back(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    } else if (c == U'\u0130') {
      result += U"i\u0307";  // the one character whose lower case is two; u_tolower knows only one-to-one
    } else {
      result.push_back(static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))));
    }
  }
  return result;
}

}  // namespace

std::u32string BertNormalizer::normalize(std::u32string_view text) const {
  std::u32string result;
  result.reserve(text.size());
  for (char32_t c : text) {
    if (options_.clean_text) {
      if (c == 0xFFFD || is_control(c)) continue;
      if (is_whitespace(c)) c = ' ';
    }
    if (options_.handle_chinese_chars && is_chinese(c)) {
      result += {U' ', c, U' '};
    } else {
      result.push_back(c);
    }
  }
  if (options_.strip_accents) result = strip_accents(std::move(result));
  if (options_.lowercase) result = lowercase(std::move(result));
  return result;
}

}  // namespace tessera::data

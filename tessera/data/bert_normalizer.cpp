#include "tessera/data/bert_normalizer.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/normal_forms.h"
#include "tessera/data/unicode.h"

namespace tessera::data {

namespace {

// NFD is that of Unicode 12.1, which is what `tokenizers` carries: a character assigned later stays as it is.
const icu::UnicodeSet& known_characters() {
  static const icu::UnicodeSet known = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet set(u"[:age=12.1:]", status);
    TESSERA_INVARIANT(U_SUCCESS(status));
    set.freeze();
    return set;
  }();
  return known;
}

const icu::Normalizer2& nfd() {
  static const icu::FilteredNormalizer2 normalizer = [] {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* full = icu::Normalizer2::getNFDInstance(status);
    TESSERA_INVARIANT(U_SUCCESS(status));
    return icu::FilteredNormalizer2(*full, known_characters());
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

// Nothing where it is dropped.
std::optional<char32_t> cleaned(char32_t c) {
  if (c == 0xFFFD || is_control(c)) return std::nullopt;
  return is_whitespace(c) ? U' ' : c;
}

// One character but for this one, whose lower case is two; u_tolower knows only one-to-one.
constexpr char32_t kDottedI = U'\u0130', kDotAbove = U'\u0307';

char32_t lowered(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
  return c == kDottedI ? U'i' : static_cast<char32_t>(u_tolower(static_cast<UChar32>(c)));
}

std::u32string lowercase(std::u32string text) {
  std::u32string result;
  result.reserve(text.size());
  for (const char32_t c : text) {
    result.push_back(lowered(c));
    if (c == kDottedI) result.push_back(kDotAbove);
  }
  return result;
}

// Each character becomes what `changes` appends for it.
template <class Append>
void rewrite_each(AlignedText& text, const Append& changes) {
  std::vector<CharacterChange> all;
  for (const char32_t c : decode_utf8(text.text())) changes(c, all);
  text.rewrite(all);
}

// Of the text the characters for which kept(c) gives one, as that one.
template <class Kept>
void keep(AlignedText& text, const Kept& kept) {
  size_t place = 0;
  std::vector<AlignedText::Bytes> dropped;
  std::vector<CharacterChange> changes;
  for (const char32_t c : decode_utf8(text.text())) {
    const size_t begin = place;
    place += utf8_length(text.text()[begin]);
    const std::optional<char32_t> becomes = kept(c);
    becomes ? changes.push_back({*becomes, 0}) : dropped.push_back({begin, place});
  }
  text.replace(dropped, "");
  text.rewrite(changes);
}

}  // namespace

std::u32string BertNormalizer::normalize(std::u32string_view text) const {
  std::u32string result;
  result.reserve(text.size());
  for (char32_t c : text) {
    if (options_.clean_text) {
      const std::optional<char32_t> clean = cleaned(c);
      if (!clean) continue;
      c = *clean;
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

void BertNormalizer::normalize(AlignedText& text) const {
  if (options_.clean_text) keep(text, cleaned);
  if (options_.handle_chinese_chars) {
    rewrite_each(text, [](char32_t c, std::vector<CharacterChange>& all) {
      if (is_chinese(c)) {
        all.insert(all.end(), {{U' ', 0}, {c, 1}, {U' ', 1}});
      } else {
        all.push_back({c, 0});
      }
    });
  }
  if (options_.strip_accents) {
    const auto known = [](char32_t c) {
      return static_cast<bool>(known_characters().contains(static_cast<UChar32>(c)));
    };
    text.rewrite(normal_form_changes(text.text(), {.knows = known}));
    keep(text, [](char32_t c) { return is_nonspacing_mark(c) ? std::nullopt : std::optional(c); });
  }
  if (options_.lowercase) {
    rewrite_each(text, [](char32_t c, std::vector<CharacterChange>& all) {
      all.push_back({lowered(c), 0});
      if (c == kDottedI) all.push_back({kDotAbove, 1});
    });
  }
}

}  // namespace tessera::data

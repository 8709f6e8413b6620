#include "tessera/data/normal_forms.h"

#include <unicode/normalizer2.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/data/unicode.h"

namespace tessera::data {
namespace {

const icu::Normalizer2& composing(bool compatible) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* const form =
      compatible ? icu::Normalizer2::getNFKCInstance(status) : icu::Normalizer2::getNFCInstance(status);
  TESSERA_INVARIANT(U_SUCCESS(status));
  return *form;
}

struct Mark {
  CharacterChange change;
  uint8_t order;  // canonical combining class; 0: no mark, others are not moved across it
};

// Marks behind one another are put in the order of their classes, together with what they stand for.
std::vector<Mark> decomposed(std::string_view text, const NormalForm& form) {
  const icu::Normalizer2& tables = composing(form.compatible);
  std::vector<Mark> marks;
  for (const char32_t c : decode_utf8(text)) {
    icu::UnicodeString parts;
    const bool known = !form.knows || form.knows(c);
    if (!known || !tables.getDecomposition(static_cast<UChar32>(c), parts)) parts = static_cast<UChar32>(c);
    int change = 0;  // what one character becomes: the first stands for it, the others are new
    for (int32_t i = 0; i < parts.length(); change = 1) {
      const UChar32 part = parts.char32At(i);
      i += U16_LENGTH(part);
      marks.push_back({{static_cast<char32_t>(part), change}, known ? tables.getCombiningClass(part) : uint8_t{0}});
    }
  }
  for (auto begin = marks.begin(); begin != marks.end();) {
    const auto is_starter = [](const Mark& mark) { return mark.order == 0; };
    begin = std::find_if_not(begin, marks.end(), is_starter);
    const auto end = std::find_if(begin, marks.end(), is_starter);
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) { return a.order < b.order; });
    begin = end;
  }
  return marks;
}

// A character and a mark behind it that no other blocks become the one character that is composed of them.
std::vector<CharacterChange> recomposed(const std::vector<Mark>& marks) {
  const icu::Normalizer2& tables = composing(/*compatible=*/false);
  std::vector<CharacterChange> result;
  size_t starter = SIZE_MAX;  // in the result: the last one that is no mark
  int last_order = -1;        // of what stands between it and the next; -1: nothing does
  for (const auto& [change, order] : marks) {
    const bool reachable = starter != SIZE_MAX && last_order < static_cast<int>(order);
    const UChar32 one = !reachable ? -1
                                   : tables.composePair(static_cast<UChar32>(result[starter].character),
                                                        static_cast<UChar32>(change.character));
    if (one >= 0) {
      result[starter] = {static_cast<char32_t>(one), result[starter].change + change.change - 1};
      continue;
    }
    if (order == 0) {
      starter = result.size();
      last_order = -1;
    } else {
      last_order = order;
    }
    result.push_back(change);
  }
  return result;
}

}  // namespace

std::vector<CharacterChange> normal_form_changes(std::string_view text, const NormalForm& form) {
  const std::vector<Mark> marks = decomposed(text, form);
  if (form.composed) return recomposed(marks);
  std::vector<CharacterChange> changes;
  for (const Mark& mark : marks) changes.push_back(mark.change);
  return changes;
}

}  // namespace tessera::data

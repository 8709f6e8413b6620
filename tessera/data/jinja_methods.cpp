// The methods of Python's str, dict and list that templates call, and what they are made of.
#include <fmt/format.h>
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <limits>

#include "tessera/data/jinja_value.h"
#include "tessera/data/unicode.h"

namespace tessera::data::jinja {
namespace {

using Bound = std::vector<Value>;

bool is_given(const Value& value) { return value.undefined() == nullptr && !value.is_none(); }

int64_t whole_or(const Value& value, int64_t otherwise) { return is_given(value) ? whole_of(value) : otherwise; }

std::string utf8_text(std::u32string_view text) {
  std::string bytes;
  append_utf8(text, bytes);
  return bytes;
}

Value list_of(const std::vector<std::string>& texts) {
  List items;
  for (const std::string& text : texts) items.emplace_back(text);
  return items;
}

// One of the parts of a text.
void add_text(std::vector<std::string>& parts, std::string text) {
  parts.push_back(std::move(text));
  Meter::require_room(parts.size() * sizeof(std::string));
}

// str.split(): at white space, or at `separator`; at most `times` cuts, below 0 any number.
std::vector<std::string> split(const std::string& text, const Value& separator, int64_t times) {
  std::vector<std::string> parts;
  if (is_given(separator)) {
    const std::string& mark = text_of(separator);
    if (mark.empty()) fail("an empty text separates nothing");
    size_t at = 0;
    for (size_t found; times != 0 && (found = text.find(mark, at)) != std::string::npos; --times) {
      add_text(parts, text.substr(at, found - at));
      at = found + mark.size();
    }
    parts.push_back(text.substr(at));
    return parts;
  }
  const std::u32string characters = decode_utf8(text);
  for (size_t at = 0;;) {
    while (at < characters.size() && is_whitespace(characters[at])) ++at;
    if (at == characters.size()) return parts;
    size_t end = at;
    while (end < characters.size() && !is_whitespace(characters[end])) ++end;
    if (times-- == 0) {
      parts.push_back(stripped(utf8_text(characters.substr(at)), None{}, false, true));
      return parts;
    }
    add_text(parts, utf8_text(characters.substr(at, end - at)));
    at = end;
  }
}

// str.rsplit(): the same from the end.
std::vector<std::string> split_from_end(const std::string& text, const Value& separator, int64_t times) {
  if (times < 0) return split(text, separator, times);
  std::vector<std::string> parts = split(text, separator, -1);
  const auto rest = static_cast<int64_t>(parts.size()) - 1 - times;
  if (rest <= 0) return parts;
  if (!is_given(separator)) fail("rsplit with a limit needs a separator");
  const auto kept = parts.begin() + rest;
  for (auto part = parts.begin() + 1; part <= kept; ++part) parts.front() += *separator.text() + *part;
  parts.erase(parts.begin() + 1, kept + 1);
  return parts;
}

bool has_affix(const std::string& text, const Value& affix, bool at_start) {
  if (const List* const any = affix.list()) {
    return std::any_of(any->begin(), any->end(), [&](const Value& each) { return has_affix(text, each, at_start); });
  }
  return at_start ? text.starts_with(text_of(affix)) : text.ends_with(text_of(affix));
}

// In characters; -1 where it is not there.
int64_t position(const std::string& text, const std::string& what, bool from_end) {
  const size_t byte = from_end ? text.rfind(what) : text.find(what);
  return byte == std::string::npos ? -1 : length_of(text.substr(0, byte));
}

int64_t occurrences(const std::string& text, const std::string& what) {
  if (what.empty()) return length_of(text) + 1;
  int64_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++count;
  return count;
}

bool all_of_text(const std::string& text, bool (*is)(char32_t)) {
  const std::u32string characters = decode_utf8(text);
  return !characters.empty() && std::all_of(characters.begin(), characters.end(), is);
}

// str.title(): the first of each run of letters large, the others small.
std::string titled(const std::string& text) {
  std::string result;
  bool inside = false;
  for (const char32_t c : decode_utf8(text)) {
    const std::string letter = utf8_text(std::u32string_view(&c, 1));
    result += inside ? lower(letter) : upper(letter);
    inside = u_isalpha(static_cast<UChar32>(c));
  }
  return result;
}

// str.isupper() and str.islower(): some letter has a case, and none has the other one.
bool has_case(const std::string& text, bool is_upper) {
  return is_upper ? text == upper(text) && text != lower(text) : text == lower(text) && text != upper(text);
}

std::string joined(const std::string& between, const Value& items) {
  std::string result;
  bool first = true;
  for (const Value& each : items_of(items)) {
    if (!first) result += between;
    first = false;
    result += text_of(each);
    Meter::require_room(result.size());
  }
  return result;
}

struct TextMethod {
  const char* name;
  std::initializer_list<std::string_view> arguments;
  Value (*call)(const std::string& text, const Bound& given);
};

const TextMethod kTextMethods[] = {
    {"strip", {"chars"}, [](const std::string& t, const Bound& g) -> Value { return stripped(t, g[0]); }},
    {"lstrip", {"chars"}, [](const std::string& t, const Bound& g) -> Value { return stripped(t, g[0], true, false); }},
    {"rstrip", {"chars"}, [](const std::string& t, const Bound& g) -> Value { return stripped(t, g[0], false, true); }},
    {"startswith", {"prefix"}, [](const std::string& t, const Bound& g) -> Value { return has_affix(t, g[0], true); }},
    {"endswith", {"suffix"}, [](const std::string& t, const Bound& g) -> Value { return has_affix(t, g[0], false); }},
    {"removeprefix",
     {"prefix"},
     [](const std::string& t, const Bound& g) -> Value {
       return t.starts_with(text_of(g[0])) ? t.substr(g[0].text()->size()) : t;
     }},
    {"removesuffix",
     {"suffix"},
     [](const std::string& t, const Bound& g) -> Value {
       return t.ends_with(text_of(g[0])) ? t.substr(0, t.size() - g[0].text()->size()) : t;
     }},
    {"split",
     {"sep", "maxsplit"},
     [](const std::string& t, const Bound& g) -> Value { return list_of(split(t, g[0], whole_or(g[1], -1))); }},
    {"rsplit",
     {"sep", "maxsplit"},
     [](const std::string& t, const Bound& g) -> Value {
       return list_of(split_from_end(t, g[0], whole_or(g[1], -1)));
     }},
    {"splitlines", {}, [](const std::string& t, const Bound&) -> Value { return list_of(lines_of(t)); }},
    {"upper", {}, [](const std::string& t, const Bound&) -> Value { return upper(t); }},
    {"lower", {}, [](const std::string& t, const Bound&) -> Value { return lower(t); }},
    {"title", {}, [](const std::string& t, const Bound&) -> Value { return titled(t); }},
    {"capitalize", {}, [](const std::string& t, const Bound&) -> Value { return capitalized(t); }},
    {"replace",
     {"old", "new", "count"},
     [](const std::string& t, const Bound& g) -> Value {
       return replaced(t, text_of(g[0]), text_of(g[1]), whole_or(g[2], -1));
     }},
    {"find", {"sub"}, [](const std::string& t, const Bound& g) -> Value { return position(t, text_of(g[0]), false); }},
    {"rfind", {"sub"}, [](const std::string& t, const Bound& g) -> Value { return position(t, text_of(g[0]), true); }},
    {"index",
     {"sub"},
     [](const std::string& t, const Bound& g) -> Value {
       const int64_t found = position(t, text_of(g[0]), false);
       if (found < 0) fail("substring not found");
       return found;
     }},
    {"count", {"sub"}, [](const std::string& t, const Bound& g) -> Value { return occurrences(t, text_of(g[0])); }},
    {"join", {"iterable"}, [](const std::string& t, const Bound& g) -> Value { return joined(t, g[0]); }},
    {"isdigit",
     {},
     [](const std::string& t, const Bound&) -> Value {
       return all_of_text(t, [](char32_t c) { return u_isdigit(static_cast<UChar32>(c)) != 0; });
     }},
    {"isalpha",
     {},
     [](const std::string& t, const Bound&) -> Value {
       return all_of_text(t, [](char32_t c) { return u_isalpha(static_cast<UChar32>(c)) != 0; });
     }},
    {"isalnum",
     {},
     [](const std::string& t, const Bound&) -> Value {
       return all_of_text(t, [](char32_t c) { return u_isalnum(static_cast<UChar32>(c)) != 0; });
     }},
    {"isspace", {}, [](const std::string& t, const Bound&) -> Value { return all_of_text(t, is_whitespace); }},
    {"isupper", {}, [](const std::string& t, const Bound&) -> Value { return has_case(t, true); }},
    {"islower", {}, [](const std::string& t, const Bound&) -> Value { return has_case(t, false); }},
};

Value text_method(const std::string& text, const std::string& name) {
  const auto* const found = std::find_if(std::begin(kTextMethods), std::end(kTextMethods),
                                         [&](const auto& each) { return name == each.name; });
  if (found == std::end(kTextMethods)) return {};
  return Function{name, [text, found](const Arguments& arguments) {
                    return found->call(text, bound(arguments, found->name, found->arguments));
                  }};
}

Value dict_method(const Value& dict, const std::string& name) {
  const auto with = [&](auto call) { return Value(Function{name, std::move(call)}); };
  if (name == "get") {
    return with([dict](const Arguments& arguments) -> Value {
      const auto given = bound(arguments, "get", {"key", "default"});
      const Value* const found = given[0].text() == nullptr ? nullptr : find(*dict.entries(), *given[0].text());
      if (found != nullptr) return *found;
      return given[1].undefined() == nullptr ? given[1] : Value(None{});
    });
  }
  if (name == "keys") return with([dict](const Arguments&) -> Value { return items_of(dict); });
  if (name == "values" || name == "items") {
    return with([dict, pairs = name == "items"](const Arguments&) -> Value {
      List items;
      for (const auto& [key, value] : *dict.entries()) items.push_back(pairs ? Value(List{key, value}) : value);
      return items;
    });
  }
  return {};
}

Value list_method(const Value& list, const std::string& name) {
  if (name == "count") {
    return Function{
        name, [list](const Arguments& arguments) -> Value {
          const auto given = bound(arguments, "count", {"value"});
          return static_cast<int64_t>(std::count_if(list.list()->begin(), list.list()->end(),
                                                    [&](const Value& each) { return are_equal(each, given[0]); }));
        }};
  }
  if (name == "index") {
    return Function{name, [list](const Arguments& arguments) -> Value {
                      const auto given = bound(arguments, "index", {"value"});
                      const List& items = *list.list();
                      for (size_t i = 0; i < items.size(); ++i) {
                        if (are_equal(items[i], given[0])) return static_cast<int64_t>(i);
                      }
                      fail("the value is not in the list");
                    }};
  }
  if (name == "append" || name == "extend" || name == "insert" || name == "pop") {
    fail(fmt::format("a template may not change a list ('{}')", name));  // as transformers' sandbox
  }
  return {};
}

}  // namespace

Value method(const Value& of, const std::string& name) {
  if (const std::string* const text = of.text()) return text_method(*text, name);
  if (of.entries() != nullptr) return dict_method(of, name);
  if (of.list() != nullptr) return list_method(of, name);
  return {};
}

std::string upper(const std::string& text) {
  std::string result;
  icu::UnicodeString::fromUTF8(text).toUpper(icu::Locale::getRoot()).toUTF8String(result);
  return result;
}

std::string lower(const std::string& text) {
  std::string result;
  icu::UnicodeString::fromUTF8(text).toLower(icu::Locale::getRoot()).toUTF8String(result);
  return result;
}

std::string capitalized(const std::string& text) {
  const std::u32string characters = decode_utf8(text);
  if (characters.empty()) return text;
  return upper(utf8_text(characters.substr(0, 1))) + lower(utf8_text(characters.substr(1)));
}

std::string stripped(const std::string& text, const Value& characters, bool left, bool right) {
  const bool given = is_given(characters);
  const std::u32string set = given ? decode_utf8(text_of(characters)) : U"";
  const auto goes = [&](char32_t c) { return given ? set.find(c) != std::u32string::npos : is_python_space(c); };
  const std::u32string all = decode_utf8(text);
  size_t begin = 0, end = all.size();
  while (left && begin < end && goes(all[begin])) ++begin;
  while (right && begin < end && goes(all[end - 1])) --end;
  return utf8_text(std::u32string_view(all).substr(begin, end - begin));
}

std::string replaced(const std::string& text, const std::string& what, const std::string& with, int64_t count) {
  if (what.empty()) fail("an empty text cannot be replaced");
  std::string result;
  size_t at = 0;
  for (size_t found; count != 0 && (found = text.find(what, at)) != std::string::npos; --count) {
    result.append(text, at, found - at).append(with);
    Meter::require_room(result.size());
    at = found + what.size();
  }
  return result.append(text, at);
}

std::vector<std::string> lines_of(const std::string& text) {
  constexpr std::u32string_view kEnds = U"\n\r\v\f\x1C\x1D\x1E\x85\u2028\u2029";
  std::vector<std::string> lines;
  const std::u32string all = decode_utf8(text);
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find_first_of(kEnds, at), all.size());
    add_text(lines, utf8_text(std::u32string_view(all).substr(at, end - at)));
    at = end + (end + 1 < all.size() && all[end] == U'\r' && all[end + 1] == U'\n' ? 2 : 1);
  }
  return lines;
}

}  // namespace tessera::data::jinja

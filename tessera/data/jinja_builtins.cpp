#include "tessera/data/jinja_builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <numeric>
#include <string_view>
#include <vector>

#include "tessera/base/suggest.h"
#include "tessera/data/unicode.h"

namespace tessera::data::jinja {
namespace {

constexpr int64_t kLongestRange = 100'000;  // as Jinja's sandbox

bool given(const Value& value) { return value.undefined() == nullptr && !value.is_none(); }

// "a.b.0" of an item: what map, selectattr and others mean by an attribute. `otherwise`: of one that is not there.
Value dotted_attribute(Value value, const Value& path, const Value& otherwise = {}) {
  const auto found = [&](Value step) { return step.undefined() != nullptr && given(otherwise) ? otherwise : step; };
  if (path.whole() != nullptr) return found(item(value, path));
  const std::string& names = text_of(path);
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find('.', at), names.size());
    const std::string name = names.substr(at, end - at);
    const bool is_index =
        !name.empty() && name.find_first_not_of("0123456789") == std::string::npos && name.size() < 10;
    value = found(item(value, is_index ? Value(static_cast<int64_t>(std::stoll(name))) : Value(name)));
    at = end + 1;
  }
  return value;
}

// Text as it is compared where case does not matter.
Value without_case(const Value& value, const Value& case_sensitive) {
  const bool keeps = given(case_sensitive) && is_true(case_sensitive);
  return value.text() != nullptr && !keeps ? Value(lower(*value.text())) : value;
}

Arguments rest_of(const Arguments& arguments, size_t first) {
  Arguments rest{.values = {}, .named = arguments.named};
  if (arguments.values.size() > first) {
    rest.values.assign(arguments.values.begin() + static_cast<std::ptrdiff_t>(first), arguments.values.end());
  }
  return rest;
}

Value default_filter(const Value& value, const Arguments& arguments) {
  const auto [otherwise, falsy] = [&] {
    auto all = bound(arguments, "default", {"default_value", "boolean"});
    return std::pair(all[0], all[1]);
  }();
  const bool missing = value.undefined() != nullptr || (given(falsy) && is_true(falsy) && !is_true(value));
  if (!missing) return value;
  return otherwise.undefined() != nullptr ? Value("") : otherwise;
}

Value join_filter(const Value& value, const Arguments& arguments) {
  const auto all = bound(arguments, "join", {"d", "attribute"});
  const std::string between = given(all[0]) ? written(all[0]) : "";
  std::string text;
  bool first = true;
  for (const Value& each : items_of(value)) {
    if (!first) text += between;
    first = false;
    text += written(given(all[1]) ? dotted_attribute(each, all[1]) : each);
    Meter::require_room(text.size());
  }
  return text;
}

Value indent_filter(const Value& value, const Arguments& arguments) {
  const auto all = bound(arguments, "indent", {"width", "first", "blank"});
  const std::string indention =
      all[0].text() != nullptr
          ? *all[0].text()
          : std::string(static_cast<size_t>(std::clamp<int64_t>(given(all[0]) ? whole_of(all[0]) : 4, 0, 1000)), ' ');
  const bool blank = given(all[2]) && is_true(all[2]);
  std::string text = given(all[1]) && is_true(all[1]) ? indention : "";
  bool first = true;
  for (const std::string& line : lines_of(written(value) + "\n")) {
    if (!first) text += '\n' + (blank || !line.empty() ? indention : "");
    first = false;
    text += line;
    Meter::require_room(text.size());
  }
  return text;
}

// int(value, base), or `otherwise`.
Value int_filter(const Value& value, const Arguments& arguments) {
  const auto all = bound(arguments, "int", {"default", "base"});
  const Value otherwise = given(all[0]) ? all[0] : Value(int64_t{0});
  if (value.is_number()) {
    const double real = number_of(value);
    return value.real() == nullptr  ? Value(whole_of(value))
           : std::fabs(real) < 9e18 ? Value(static_cast<int64_t>(real))
                                    : otherwise;
  }
  if (value.text() == nullptr) return otherwise;
  std::string text = stripped(*value.text(), None{});
  if (text.starts_with('+')) text.erase(0, 1);
  const char* const end = text.data() + text.size();
  int64_t whole = 0;
  const int base = given(all[1]) ? static_cast<int>(std::clamp<int64_t>(whole_of(all[1]), 2, 36)) : 10;
  if (const auto read = std::from_chars(text.data(), end, whole, base); read.ec == std::errc() && read.ptr == end) {
    return whole;
  }
  double real = 0;
  const auto read = std::from_chars(text.data(), end, real);
  const bool is_real = read.ec == std::errc() && read.ptr == end && std::fabs(real) < 9e18;
  return is_real ? Value(static_cast<int64_t>(real)) : otherwise;
}

Value float_filter(const Value& value, const Arguments& arguments) {
  const auto all = bound(arguments, "float", {"default"});
  const Value otherwise = given(all[0]) ? all[0] : Value(0.0);
  if (value.is_number()) return number_of(value);
  if (value.text() == nullptr) return otherwise;
  const std::string text = stripped(*value.text(), None{});
  const char* const end = text.data() + text.size();
  double real = 0;
  const auto read = std::from_chars(text.data(), end, real);
  return read.ec == std::errc() && read.ptr == end && !text.empty() ? Value(real) : otherwise;
}

Value json_filter(const Value& value, const Arguments& arguments) {
  const auto all = bound(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  if (given(all[2])) fail("tojson's separators are not supported");
  const auto flag = [](const Value& of) { return given(of) && is_true(of); };
  return json_of(value, {.indent = given(all[1]) ? std::clamp<int64_t>(whole_of(all[1]), 0, 100) : -1,
                         .ascii = flag(all[0]),
                         .sorted = flag(all[3])});
}

Value map_filter(const Value& value, const Arguments& arguments) {
  List results;
  if (arguments.values.empty()) {
    const auto all = bound(arguments, "map", {"attribute", "default"});
    if (!given(all[0])) fail("map needs a filter or an attribute");
    for (const Value& each : items_of(value)) results.push_back(dotted_attribute(each, all[0], all[1]));
    return results;
  }
  const Filter filter = find_filter(text_of(arguments.values[0]));
  const Arguments rest = rest_of(arguments, 1);
  for (const Value& each : items_of(value)) results.push_back(filter(each, rest));
  return results;
}

// select, reject, selectattr, rejectattr.
Value selected(const Value& value, const Arguments& arguments, bool by_attribute, bool keeps) {
  const size_t first = by_attribute ? 1 : 0;
  if (by_attribute && arguments.values.empty()) fail("selectattr and rejectattr need an attribute");
  const Test test = arguments.values.size() > first ? find_test(text_of(arguments.values[first])) : nullptr;
  const Arguments rest = rest_of(arguments, first + 1);
  List results;
  for (const Value& each : items_of(value)) {
    const Value looked_at = by_attribute ? dotted_attribute(each, arguments.values[0]) : each;
    if ((test == nullptr ? is_true(looked_at) : test(looked_at, rest)) == keeps) results.push_back(each);
  }
  return results;
}

Value sort_filter(const Value& value, const Arguments& arguments) {
  const auto all = bound(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  const bool reverse = given(all[0]) && is_true(all[0]);
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& each : items_of(value)) {
    keyed.emplace_back(without_case(given(all[2]) ? dotted_attribute(each, all[2]) : each, all[1]), each);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? is_less(b.first, a.first) : is_less(a.first, b.first);
  });
  List results;
  for (auto& [key, each] : keyed) results.push_back(std::move(each));
  return results;
}

Value dictsort_filter(const Value& value, const Arguments& arguments) {
  const auto all = bound(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  if (value.entries() == nullptr) fail(fmt::format("dictsort needs a dict, and has a {}", value.type()));
  const bool by_value = given(all[1]) && text_of(all[1]) == "value", reverse = given(all[2]) && is_true(all[2]);
  Entries entries = *value.entries();
  std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
    const Value left = without_case(by_value ? a.second : Value(a.first), all[0]);
    const Value right = without_case(by_value ? b.second : Value(b.first), all[0]);
    return reverse ? is_less(right, left) : is_less(left, right);
  });
  List results;
  for (const auto& [key, each] : entries) results.emplace_back(List{key, each});
  return results;
}

Value unique_filter(const Value& value, const Arguments& arguments) {
  const auto all = bound(arguments, "unique", {"case_sensitive", "attribute"});
  List seen, results;
  for (const Value& each : items_of(value)) {
    const Value key = without_case(given(all[1]) ? dotted_attribute(each, all[1]) : each, all[0]);
    if (is_in(key, seen)) continue;
    seen.push_back(key);
    results.push_back(each);
  }
  return results;
}

Value extreme(const Value& value, const Arguments& arguments, bool largest) {
  const auto all = bound(arguments, largest ? "max" : "min", {"case_sensitive", "attribute"});
  const auto key = [&](const Value& each) {
    return without_case(given(all[1]) ? dotted_attribute(each, all[1]) : each, all[0]);
  };
  const List items = items_of(value);
  if (items.empty()) return Undefined{"the smallest or largest of nothing is undefined"};
  return *std::accumulate(items.begin() + 1, items.end(), items.begin(), [&](auto best, const Value& each) {
    const auto at = items.begin() + (&each - items.data());
    return (largest ? is_less(key(*best), key(each)) : is_less(key(each), key(*best))) ? at : best;
  });
}

Value sum_filter(const Value& value, const Arguments& arguments) {
  const auto all = bound(arguments, "sum", {"attribute", "start"});
  Value sum = given(all[1]) ? all[1] : Value(int64_t{0});
  for (const Value& each : items_of(value)) {
    sum = calculate("+", sum, given(all[0]) ? dotted_attribute(each, all[0]) : each);
  }
  return sum;
}

Value round_filter(const Value& value, const Arguments& arguments) {
  const auto all = bound(arguments, "round", {"precision", "method"});
  const double scale = std::pow(10.0, given(all[0]) ? static_cast<double>(whole_of(all[0])) : 0.0);
  const double scaled = number_of(value) * scale;
  const std::string how = given(all[1]) ? text_of(all[1]) : "common";
  if (how != "common" && how != "ceil" && how != "floor") fail("round's method is common, ceil or floor");
  return (how == "ceil" ? std::ceil(scaled) : how == "floor" ? std::floor(scaled) : std::nearbyint(scaled)) / scale;
}

Value first_filter(const Value& value, const Arguments&) {
  const List items = items_of(value);
  return items.empty() ? Value(Undefined{"the first of nothing is undefined"}) : items.front();
}

Value last_filter(const Value& value, const Arguments&) {
  const List items = items_of(value);
  return items.empty() ? Value(Undefined{"the last of nothing is undefined"}) : items.back();
}

Value reverse_filter(const Value& value, const Arguments&) {
  List items = items_of(value);
  std::reverse(items.begin(), items.end());
  if (value.text() == nullptr) return items;
  std::string text;
  for (const Value& each : items) text += *each.text();
  return text;
}

// Jinja's title, which is not str.title(): words begin after white space, '-', '(', '{', '[' and '<'.
Value title_filter(const Value& value, const Arguments&) {
  std::string text;
  bool begins = true;
  for (const char32_t c : decode_utf8(written(value))) {
    std::string letter;
    append_utf8(std::u32string_view(&c, 1), letter);
    text += begins ? upper(letter) : lower(letter);
    begins = is_whitespace(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  }
  return text;
}

Value escape_filter(const Value& value, const Arguments&) {
  std::string text;
  for (const char c : written(value)) {
    constexpr std::pair<char, const char*> kEscapes[] = {
        {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}};
    const auto* const known =
        std::find_if(std::begin(kEscapes), std::end(kEscapes), [&](const auto& escape) { return escape.first == c; });
    known == std::end(kEscapes) ? text += c : text += known->second;
  }
  return text;
}

Value items_filter(const Value& value, const Arguments&) {
  if (value.undefined() != nullptr) return List{};
  if (value.entries() == nullptr) fail(fmt::format("items needs a dict, and has a {}", value.type()));
  return method(value, "items").function()->call({});
}

struct NamedFilter {
  const char* name;
  Filter call;
};

constexpr NamedFilter kFilters[] = {
    {"abs", [](const Value& v, const Arguments&) { return is_less(v, int64_t{0}) ? negated(v) : v; }},
    {"capitalize", [](const Value& v, const Arguments&) -> Value { return capitalized(written(v)); }},
    {"count", [](const Value& v, const Arguments&) -> Value { return length_of(v); }},
    {"d", default_filter},
    {"default", default_filter},
    {"dictsort", dictsort_filter},
    {"e", escape_filter},
    {"escape", escape_filter},
    {"first", first_filter},
    {"float", float_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"length", [](const Value& v, const Arguments&) -> Value { return length_of(v); }},
    {"list", [](const Value& v, const Arguments&) -> Value { return items_of(v); }},
    {"lower", [](const Value& v, const Arguments&) -> Value { return lower(written(v)); }},
    {"map", map_filter},
    {"max", [](const Value& v, const Arguments& a) { return extreme(v, a, true); }},
    {"min", [](const Value& v, const Arguments& a) { return extreme(v, a, false); }},
    {"reject", [](const Value& v, const Arguments& a) { return selected(v, a, false, false); }},
    {"rejectattr", [](const Value& v, const Arguments& a) { return selected(v, a, true, false); }},
    {"replace",
     [](const Value& v, const Arguments& a) -> Value {
       const auto all = bound(a, "replace", {"old", "new", "count"});
       return replaced(written(v), written(all[0]), written(all[1]), given(all[2]) ? whole_of(all[2]) : -1);
     }},
    {"reverse", reverse_filter},
    {"round", round_filter},
    {"safe", [](const Value& v, const Arguments&) { return v; }},
    {"select", [](const Value& v, const Arguments& a) { return selected(v, a, false, true); }},
    {"selectattr", [](const Value& v, const Arguments& a) { return selected(v, a, true, true); }},
    {"sort", sort_filter},
    {"string", [](const Value& v, const Arguments&) -> Value { return written(v); }},
    {"sum", sum_filter},
    {"title", title_filter},
    {"tojson", json_filter},
    {"trim",
     [](const Value& v, const Arguments& a) -> Value { return stripped(written(v), bound(a, "trim", {"chars"})[0]); }},
    {"unique", unique_filter},
    {"upper", [](const Value& v, const Arguments&) -> Value { return upper(written(v)); }},
};

Value only(const Arguments& arguments) {
  if (arguments.values.size() != 1) fail("this test needs one argument");
  return arguments.values[0];
}

bool is_equal_to(const Value& v, const Arguments& a) { return are_equal(v, only(a)); }
bool is_other_than(const Value& v, const Arguments& a) { return !are_equal(v, only(a)); }
bool is_below(const Value& v, const Arguments& a) { return is_less(v, only(a)); }
bool is_above(const Value& v, const Arguments& a) { return is_less(only(a), v); }
bool is_at_most(const Value& v, const Arguments& a) { return !is_less(only(a), v); }
bool is_at_least(const Value& v, const Arguments& a) { return !is_less(v, only(a)); }

bool is_sized(const Value& v) { return v.text() != nullptr || v.list() != nullptr || v.entries() != nullptr; }

// None, true and false are the same everywhere; of other values a template cannot tell.
bool is_same(const Value& v, const Value& other) {
  return std::string_view(v.type()) == other.type() && are_equal(v, other);
}

bool is_divisible(int64_t value, int64_t by) {
  if (by == 0) fail("a division by zero");
  return by == -1 || value % by == 0;
}

struct NamedTest {
  const char* name;
  Test call;
};

constexpr NamedTest kTests[] = {
    {"!=", is_other_than},
    {"<", is_below},
    {"<=", is_at_most},
    {"==", is_equal_to},
    {">", is_above},
    {">=", is_at_least},
    {"boolean", [](const Value& v, const Arguments&) { return v.truth() != nullptr; }},
    {"callable", [](const Value& v, const Arguments&) { return v.function() != nullptr || v.undefined() != nullptr; }},
    {"defined", [](const Value& v, const Arguments&) { return v.undefined() == nullptr; }},
    {"divisibleby", [](const Value& v, const Arguments& a) { return is_divisible(whole_of(v), whole_of(only(a))); }},
    {"eq", is_equal_to},
    {"equalto", is_equal_to},
    {"even", [](const Value& v, const Arguments&) { return is_divisible(whole_of(v), 2); }},
    {"false", [](const Value& v, const Arguments&) { return v.truth() != nullptr && !*v.truth(); }},
    {"float", [](const Value& v, const Arguments&) { return v.real() != nullptr; }},
    {"ge", is_at_least},
    {"greaterthan", is_above},
    {"gt", is_above},
    {"in", [](const Value& v, const Arguments& a) { return is_in(v, only(a)); }},
    {"integer", [](const Value& v, const Arguments&) { return v.whole() != nullptr; }},
    {"iterable", [](const Value& v, const Arguments&) { return is_sized(v) || v.undefined() != nullptr; }},
    {"le", is_at_most},
    {"lessthan", is_below},
    {"lower", [](const Value& v, const Arguments&) { return written(v) == lower(written(v)); }},
    {"lt", is_below},
    {"mapping", [](const Value& v, const Arguments&) { return v.entries() != nullptr; }},
    {"ne", is_other_than},
    {"none", [](const Value& v, const Arguments&) { return v.is_none(); }},
    {"number", [](const Value& v, const Arguments&) { return v.is_number(); }},
    {"odd", [](const Value& v, const Arguments&) { return !is_divisible(whole_of(v), 2); }},
    {"sameas", [](const Value& v, const Arguments& a) { return is_same(v, only(a)); }},
    {"sequence", [](const Value& v, const Arguments&) { return is_sized(v); }},
    {"string", [](const Value& v, const Arguments&) { return v.text() != nullptr; }},
    {"true", [](const Value& v, const Arguments&) { return v.truth() != nullptr && *v.truth(); }},
    {"undefined", [](const Value& v, const Arguments&) { return v.undefined() != nullptr; }},
    {"upper", [](const Value& v, const Arguments&) { return written(v) == upper(written(v)); }},
};

template <class Named, size_t kCount>
auto find_named(const Named (&table)[kCount], const std::string& name, const char* what) {
  std::vector<std::string> names;
  for (const Named& each : table) {
    if (name == each.name) return each.call;
    names.emplace_back(each.name);
  }
  const auto nearest = nearest_name(name, names);
  fail(fmt::format("there is no {} '{:.100}' here{}", what, name,
                   nearest ? fmt::format("; did you mean '{}'?", *nearest) : ""));
}

Value range_function(const Arguments& arguments) {
  const auto all = bound(arguments, "range", {"start", "stop", "step"});
  if (!given(all[0])) fail("range needs an end");
  const int64_t start = given(all[1]) ? whole_of(all[0]) : 0, stop = whole_of(given(all[1]) ? all[1] : all[0]);
  const int64_t step = given(all[2]) ? whole_of(all[2]) : 1;
  if (step == 0) fail("range's step is 0");
  List items;
  for (int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<int64_t>(items.size()) == kLongestRange) fail("range has more than 100,000 items");
    items.emplace_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return items;
}

Value strftime_function(const Arguments& arguments) {
  const std::string form = text_of(bound(arguments, "strftime_now", {"format"})[0]);
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[256];
  return std::string(text, std::strftime(text, sizeof text, form.c_str(), &local));
}

}  // namespace

Filter find_filter(const std::string& name) { return find_named(kFilters, name, "filter"); }
Test find_test(const std::string& name) { return find_named(kTests, name, "test"); }

Entries global_functions() {
  Entries globals;
  const auto add = [&](const char* name, std::function<Value(const Arguments&)> call) {
    globals.emplace_back(name, Function{name, std::move(call)});
  };
  add("range", range_function);
  add("strftime_now", strftime_function);
  add("dict", [](const Arguments& arguments) -> Value { return arguments.named; });
  add("namespace", [](const Arguments& arguments) -> Value {
    auto names = std::make_shared<Namespace>();
    for (const auto& [name, value] : arguments.named) names->values[name] = value;
    return names;
  });
  add("raise_exception", [](const Arguments& arguments) -> Value {
    fail("it refuses the conversation: " + written(bound(arguments, "raise_exception", {"message"})[0]));
  });
  return globals;
}

}  // namespace tessera::data::jinja

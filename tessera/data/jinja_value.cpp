#include "tessera/data/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/unicode.h"

namespace tessera::data::jinja {
namespace {

constexpr int kDeepestValue = 100;  // levels of lists and maps
constexpr const char* kTooMuch = "what it makes takes too much memory";

constexpr size_t kOfEach = 64;  // bytes that a value takes beside what is in it
thread_local Meter* current_meter = nullptr;

template <class... Overloads>
struct Overloaded : Overloads... {
  using Overloads::operator()...;
};

std::string utf8(std::u32string_view text) {
  std::string bytes;
  append_utf8(text, bytes);
  return bytes;
}

// repr() of a float: the shortest text that reads back as it.
std::string written_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::fabs(value);
  if (size != 0 && (size < 1e-4 || size >= 1e16)) {
    char digits[64];
    char* const end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific).ptr;
    return std::string(digits, end);
  }
  char digits[64];
  char* const end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed).ptr;
  std::string text(digits, end);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string quoted_text(const std::string& text) {
  const bool twice = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char mark = twice ? '"' : '\'';
  std::string result(1, mark);
  for (const char c : text) {
    if (c == mark || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      result += c;
    }
  }
  return result + mark;
}

std::string json_text(const std::string& text, bool ascii) {
  std::string result = "\"";
  for (const char32_t c : decode_utf8(text)) {
    constexpr std::pair<char32_t, const char*> kShort[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"},
                                                           {'\t', "\\t"}, {'\b', "\\b"},  {'\f', "\\f"}};
    const auto* const known =
        std::find_if(std::begin(kShort), std::end(kShort), [&](const auto& s) { return s.first == c; });
    if (known != std::end(kShort)) {
      result += known->second;
    } else if (c < 0x20 || (ascii && c > 0x7E && c < 0x10000)) {
      result += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else if (ascii && c >= 0x10000) {
      const auto rest = static_cast<uint32_t>(c) - 0x10000;
      result += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    } else {
      append_utf8(std::u32string_view(&c, 1), result);
    }
  }
  return result + '"';
}

// A place between items, as Python's slices count it: from the end where it is below 0.
int64_t place(const Value& value, int64_t otherwise, int64_t size, int64_t low, int64_t high) {
  if (value.undefined() != nullptr || value.is_none()) return otherwise;
  const int64_t given = whole_of(value);
  return std::clamp(given < 0 ? given + size : given, low, high);
}

template <class Items>
Items sliced(const Items& items, const Value& first, const Value& last, const Value& step_value) {
  const auto size = static_cast<int64_t>(items.size());
  const bool has_step = step_value.undefined() == nullptr && !step_value.is_none();
  const int64_t step = has_step ? whole_of(step_value) : 1;
  if (step == 0) fail("a slice's step is 0");
  Items result;
  if (step > 0) {
    const int64_t begin = place(first, 0, size, 0, size), end = place(last, size, size, 0, size);
    for (int64_t at = begin; at < end; at += std::min(step, size)) result.push_back(items[static_cast<size_t>(at)]);
  } else {
    const int64_t begin = place(first, size - 1, size, -1, size - 1), end = place(last, -1, size, -1, size - 1);
    for (int64_t at = begin; at > end; at += std::max(step, -size)) result.push_back(items[static_cast<size_t>(at)]);
  }
  return result;
}

Value repeated(const Value& of, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  const size_t size = of.text() != nullptr ? of.text()->size() : of.list()->size();
  const size_t bytes = of.text() != nullptr ? size : size * sizeof(Value);
  if (count > 0 && bytes > Meter::room() / count) fail(kTooMuch);
  if (const std::string* const text = of.text()) {
    std::string result;
    for (size_t i = 0; i < count; ++i) result += *text;
    return result;
  }
  List result;
  for (size_t i = 0; i < count; ++i) result.insert(result.end(), of.list()->begin(), of.list()->end());
  return result;
}

int64_t floor_divided(int64_t left, int64_t right) {
  const int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

Value whole_result(std::string_view sign, int64_t left, int64_t right) {
  int64_t result = 0;
  bool overflows = false;
  if (sign == "+") {
    overflows = __builtin_add_overflow(left, right, &result);
  } else if (sign == "-") {
    overflows = __builtin_sub_overflow(left, right, &result);
  } else if (sign == "*") {
    overflows = __builtin_mul_overflow(left, right, &result);
  } else if (sign == "**") {
    if (right < 0) return std::pow(static_cast<double>(left), static_cast<double>(right));
    result = 1;
    const bool stays = left == 0 || left == 1 || left == -1;
    if (stays) return right == 0 ? int64_t{1} : left == -1 ? int64_t{right % 2 == 0 ? 1 : -1} : left;
    for (int64_t i = 0; i < right && !overflows; ++i) overflows = __builtin_mul_overflow(result, left, &result);
  } else {
    if (right == 0) fail("a division by zero");
    if (sign == "/") return static_cast<double>(left) / static_cast<double>(right);
    overflows = right == -1 && left == std::numeric_limits<int64_t>::min();
    if (!overflows) result = floor_divided(left, right);
    if (!overflows && sign == "%") result = left - result * right;
  }
  if (overflows) fail(fmt::format("{} {} {} is too large a number", left, sign, right));
  return result;
}

Value real_result(std::string_view sign, double left, double right) {
  if (sign == "+") return left + right;
  if (sign == "-") return left - right;
  if (sign == "*") return left * right;
  if (sign == "**") return std::pow(left, right);
  if (right == 0) fail("a division by zero");
  if (sign == "/") return left / right;
  const double quotient = std::floor(left / right);
  return sign == "//" ? quotient : left - quotient * right;
}

std::optional<int64_t> as_whole(const Value& value) {
  if (const int64_t* const whole = value.whole()) return *whole;
  if (const bool* const truth = value.truth()) return *truth ? 1 : 0;
  return std::nullopt;
}

void write(const Value& value, std::string& out, bool quotes, int depth) {
  if (depth > kDeepestValue) fail("a value is nested too deep to be written");
  Meter::require_room(out.size());
  if (const std::string* const text = value.text()) {
    out += quotes ? quoted_text(*text) : *text;
  } else if (const List* const list = value.list()) {
    out += '[';
    for (size_t i = 0; i < list->size(); ++i) {
      if (i > 0) out += ", ";
      write((*list)[i], out, true, depth + 1);
    }
    out += ']';
  } else if (const Entries* const entries = value.entries()) {
    out += '{';
    for (size_t i = 0; i < entries->size(); ++i) {
      if (i > 0) out += ", ";
      out += quoted_text((*entries)[i].first) + ": ";
      write((*entries)[i].second, out, true, depth + 1);
    }
    out += '}';
  } else if (const bool* const truth = value.truth()) {
    out += *truth ? "True" : "False";
  } else if (const int64_t* const whole = value.whole()) {
    out += fmt::format("{}", *whole);
  } else if (const double* const real = value.real()) {
    out += written_real(*real);
  } else if (value.is_none()) {
    out += "None";
  } else if (value.undefined() != nullptr) {
    out += quotes ? "Undefined" : "";
  } else {
    out += fmt::format("<{}>", value.type());
  }
}

void write_json(const Value& value, const JsonStyle& style, int64_t depth, std::string& out) {
  if (depth > kDeepestValue) fail("a value is nested too deep to be written");
  Meter::require_room(out.size());
  const auto new_line = [&](int64_t level) {
    if (style.indent >= 0) out += '\n' + std::string(static_cast<size_t>(style.indent * level), ' ');
  };
  const auto items = [&](char open, char close, size_t count, const auto& one) {
    out += open;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out += style.indent >= 0 ? "," : ", ";
      new_line(depth + 1);
      one(i);
    }
    if (count > 0) new_line(depth);
    out += close;
  };
  if (const std::string* const text = value.text()) {
    out += json_text(*text, style.ascii);
  } else if (const List* const list = value.list()) {
    items('[', ']', list->size(), [&](size_t i) { write_json((*list)[i], style, depth + 1, out); });
  } else if (const Entries* const given = value.entries()) {
    Entries entries = *given;
    if (style.sorted)
      std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    items('{', '}', entries.size(), [&](size_t i) {
      out += json_text(entries[i].first, style.ascii) + ": ";
      write_json(entries[i].second, style, depth + 1, out);
    });
  } else if (const bool* const truth = value.truth()) {
    out += *truth ? "true" : "false";
  } else if (value.is_none()) {
    out += "null";
  } else if (const double* const real = value.real()) {
    out += std::isnan(*real) ? "NaN" : std::isinf(*real) ? (*real > 0 ? "Infinity" : "-Infinity") : written_real(*real);
  } else if (const int64_t* const whole = value.whole()) {
    out += fmt::format("{}", *whole);
  } else {
    fail(fmt::format("a value of type {} cannot be written as JSON", value.type()));
  }
}

}  // namespace

Meter::Meter(size_t most) : most_(most), outer_(std::exchange(current_meter, this)) {}
Meter::~Meter() { current_meter = outer_; }
Meter* Meter::current() { return current_meter; }
size_t Meter::room() {
  if (current_meter == nullptr) return std::numeric_limits<size_t>::max();
  return current_meter->most_ - std::min(current_meter->live_, current_meter->most_);
}
void Meter::require_room(size_t bytes) {
  if (bytes > room()) fail(kTooMuch);
}
void Meter::add(size_t bytes) {
  require_room(bytes);
  live_ += bytes;
}

Value::Value(std::string value) {
  const size_t bytes = kOfEach + value.capacity();
  any_ = std::make_shared<const Shared<std::string>>(std::move(value), bytes);
}
Value::Value(List items) {
  const size_t bytes = kOfEach + items.capacity() * sizeof(Value);
  any_ = std::make_shared<const Shared<List>>(std::move(items), bytes);
}
Value::Value(Entries entries) {
  const size_t bytes = kOfEach + entries.capacity() * sizeof(Entries::value_type);
  any_ = std::make_shared<const Shared<Entries>>(std::move(entries), bytes);
}

void fail(const std::string& what) { throw Error(ErrorKind::kData, {what, "", ""}); }

const char* Value::type() const {
  constexpr const char* kTypes[] = {"undefined", "None", "bool", "int",       "float",
                                    "str",       "list", "dict", "namespace", "function"};
  return kTypes[any_.index()];
}

Value value_of(const nlohmann::ordered_json& json) {
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    fail(fmt::format("{} is too large a number", json.get<uint64_t>()));
  }
  if (json.is_number()) return json.get<int64_t>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List items;
    for (const auto& each : json) items.push_back(value_of(each));
    return items;
  }
  Entries entries;
  for (const auto& [key, value] : json.items()) entries.emplace_back(key, value_of(value));
  return entries;
}

bool is_true(const Value& value) {
  if (const std::string* const text = value.text()) return !text->empty();
  if (const List* const list = value.list()) return !list->empty();
  if (const Entries* const entries = value.entries()) return !entries->empty();
  if (const bool* const truth = value.truth()) return *truth;
  if (const int64_t* const whole = value.whole()) return *whole != 0;
  if (const double* const real = value.real()) return *real != 0;
  return value.undefined() == nullptr && !value.is_none();
}

bool are_equal(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    const auto a = as_whole(left), b = as_whole(right);
    return a && b ? *a == *b : number_of(left) == number_of(right);
  }
  if (left.text() != nullptr && right.text() != nullptr) return *left.text() == *right.text();
  if (left.list() != nullptr && right.list() != nullptr) {
    return std::equal(left.list()->begin(), left.list()->end(), right.list()->begin(), right.list()->end(), are_equal);
  }
  if (const Entries *a = left.entries(), *b = right.entries(); a != nullptr && b != nullptr) {
    return a->size() == b->size() && std::all_of(a->begin(), a->end(), [&](const auto& entry) {
             const Value* const other = find(*b, entry.first);
             return other != nullptr && are_equal(entry.second, *other);
           });
  }
  if (left.function() != nullptr || left.names() != nullptr) {
    return left.function() == right.function() && left.names() == right.names();
  }
  return (left.is_none() && right.is_none()) || (left.undefined() != nullptr && right.undefined() != nullptr);
}

bool is_less(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    const auto a = as_whole(left), b = as_whole(right);
    return a && b ? *a < *b : number_of(left) < number_of(right);
  }
  if (left.text() != nullptr && right.text() != nullptr) return *left.text() < *right.text();
  if (left.list() != nullptr && right.list() != nullptr) {
    return std::lexicographical_compare(left.list()->begin(), left.list()->end(), right.list()->begin(),
                                        right.list()->end(), is_less);
  }
  for (const Value* const side : {&left, &right}) {
    if (side->undefined() != nullptr) fail(side->undefined()->what);
  }
  fail(fmt::format("{} and {} cannot be compared", left.type(), right.type()));
}

bool is_in(const Value& item, const Value& container) {
  if (const std::string* const text = container.text()) return text->find(text_of(item)) != std::string::npos;
  if (const Entries* const entries = container.entries()) {
    return item.text() != nullptr && find(*entries, *item.text()) != nullptr;
  }
  const List items = items_of(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& each) { return are_equal(item, each); });
}

std::string written(const Value& value) {
  std::string text;
  write(value, text, false, 0);
  return text;
}

std::string quoted(const Value& value) {
  std::string text;
  write(value, text, true, 0);
  return text;
}

std::string json_of(const Value& value, const JsonStyle& style) {
  std::string text;
  write_json(value, style, 0, text);
  return text;
}

double number_of(const Value& value) {
  if (const auto whole = as_whole(value)) return static_cast<double>(*whole);
  if (const double* const real = value.real()) return *real;
  if (value.undefined() != nullptr) fail(value.undefined()->what);
  fail(fmt::format("a number is needed where {:.100} is", quoted(value)));
}

int64_t whole_of(const Value& value) {
  if (const auto whole = as_whole(value)) return *whole;
  if (value.undefined() != nullptr) fail(value.undefined()->what);
  fail(fmt::format("a whole number is needed where {:.100} is", quoted(value)));
}

const std::string& text_of(const Value& value) {
  if (const std::string* const text = value.text()) return *text;
  if (value.undefined() != nullptr) fail(value.undefined()->what);
  fail(fmt::format("a string is needed where {:.100} is", quoted(value)));
}

int64_t length_of(const Value& value) {
  if (const std::string* const text = value.text()) {
    return std::count_if(text->begin(), text->end(), [](char byte) { return (byte & 0xC0) != 0x80; });
  }
  if (value.list() == nullptr && value.entries() == nullptr && value.undefined() == nullptr) {
    fail(fmt::format("a value of type {} has no length", value.type()));
  }
  return static_cast<int64_t>(items_of(value).size());
}

List items_of(const Value& value) {
  if (const List* const list = value.list()) return *list;
  List items;
  if (const Entries* const entries = value.entries()) {
    for (const auto& entry : *entries) items.emplace_back(entry.first);
  } else if (const std::string* const text = value.text()) {
    const std::u32string characters = decode_utf8(*text);
    Meter::require_room(characters.size() * (sizeof(Value) + kOfEach));
    items.reserve(characters.size());
    for (const char32_t c : characters) items.emplace_back(utf8(std::u32string_view(&c, 1)));
  } else if (value.undefined() == nullptr) {
    fail(fmt::format("a value of type {} cannot be iterated over", value.type()));
  }
  return items;
}

const Value* find(const Entries& entries, std::string_view key) {
  for (const auto& entry : entries) {
    if (entry.first == key) return &entry.second;
  }
  return nullptr;
}

Value attribute(const Value& of, const std::string& name) {
  if (of.undefined() != nullptr) fail(of.undefined()->what);
  if (const Namespace* const names = of.names()) {
    const auto found = names->values.find(name);
    if (found != names->values.end()) return found->second;
  }
  if (Value bound_method = method(of, name); bound_method.undefined() == nullptr) return bound_method;
  if (const Entries* const entries = of.entries()) {
    if (const Value* const found = find(*entries, name)) return *found;
  }
  return Undefined{fmt::format("a {} has no '{:.100}'", of.type(), name)};
}

Value item(const Value& of, const Value& key) {
  if (of.undefined() != nullptr) fail(of.undefined()->what);
  const Undefined missing{fmt::format("a {} has no item {:.100}", of.type(), quoted(key))};
  if (const auto index = as_whole(key); index && (of.list() != nullptr || of.text() != nullptr)) {
    const int64_t size = length_of(of), at = *index < 0 ? *index + size : *index;
    if (at < 0 || at >= size) return missing;
    if (of.list() != nullptr) return (*of.list())[static_cast<size_t>(at)];
    return utf8(decode_utf8(*of.text()).substr(static_cast<size_t>(at), 1));
  }
  if (key.text() == nullptr) return missing;
  if (const Entries* const entries = of.entries()) {
    if (const Value* const found = find(*entries, *key.text())) return *found;
  }
  return attribute(of, *key.text());
}

Value slice(const Value& of, const Value& first, const Value& last, const Value& step) {
  if (const List* const list = of.list()) return sliced(*list, first, last, step);
  return utf8(sliced(decode_utf8(text_of(of)), first, last, step));
}

Value calculate(std::string_view sign, const Value& left, const Value& right) {
  if (sign == "~") return calculate("+", written(left), written(right));
  for (const Value* const side : {&left, &right}) {
    if (side->undefined() != nullptr) fail(side->undefined()->what);
  }
  if (left.is_number() && right.is_number()) {
    const auto a = as_whole(left), b = as_whole(right);
    return a && b ? whole_result(sign, *a, *b) : real_result(sign, number_of(left), number_of(right));
  }
  if (sign == "+" && left.text() != nullptr && right.text() != nullptr) {
    Meter::require_room(left.text()->size() + right.text()->size());
    return *left.text() + *right.text();
  }
  if (sign == "+" && left.list() != nullptr && right.list() != nullptr) {
    List both = *left.list();
    both.insert(both.end(), right.list()->begin(), right.list()->end());
    return both;
  }
  const auto repeats = [](const Value& what, const Value& times) {
    return (what.text() != nullptr || what.list() != nullptr) && as_whole(times).has_value();
  };
  if (sign == "*" && repeats(left, right)) return repeated(left, whole_of(right));
  if (sign == "*" && repeats(right, left)) return repeated(right, whole_of(left));
  fail(fmt::format("'{}' does not work between {} and {}", sign, left.type(), right.type()));
}

Value negated(const Value& value) {
  if (const double* const real = value.real()) return -*real;
  return calculate("-", int64_t{0}, value);
}

std::vector<Value> bound(const Arguments& arguments, const std::string& function,
                         std::initializer_list<std::string_view> names) {
  std::vector<Value> values(names.size());
  if (arguments.values.size() > names.size()) {
    fail(fmt::format("{} takes at most {} arguments, and has {}", function, names.size(), arguments.values.size()));
  }
  std::copy(arguments.values.begin(), arguments.values.end(), values.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto* const known = std::find(names.begin(), names.end(), name);
    if (known == names.end()) fail(fmt::format("{} has no argument '{:.100}'", function, name));
    values[static_cast<size_t>(known - names.begin())] = value;
  }
  return values;
}

}  // namespace tessera::data::jinja

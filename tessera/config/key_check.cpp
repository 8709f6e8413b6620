#include "tessera/config/key_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/suggest.h"

namespace tessera::config {
namespace {

std::string_view parent_of(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string_view last_of(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

// Whether the table lists the parameters of this type; torch.optim's classes are taken by name only.
bool lists_type(std::span<const Key> table, std::string_view block, std::string_view type) {
  return std::any_of(table.begin(), table.end(), [&](const Key& key) {
    return !key.notes.when.empty() && key.path.substr(0, key.path.find('.')) == block && applies(key, type);
  });
}

const Key* find_row(std::span<const Key> table, std::string_view path, std::string_view type) {
  const Key* other = nullptr;
  for (const Key& key : table) {
    if (key.path != path) continue;
    if (applies(key, type)) return &key;
    other = &key;
  }
  return type.empty() ? other : nullptr;  // without a type, which is a problem of its own, any row will do
}

// Whether a row lies in a block that is not there by default and was not given: its keys do not apply.
bool in_absent_block(const Json& root, std::span<const Key> table, const Key& row) {
  for (std::string_view path = parent_of(row.path); !path.empty(); path = parent_of(path)) {
    const Key* block = find_row(table, path, "");
    const Pointer at = pointer_to(path);
    const bool absent = !root.contains(at) || root.at(at).is_null();
    if (absent && block->default_value == "null") return true;
  }
  return false;
}

// The numbers --------------------------------------------------------------------------------------------------------

bool in_range(const Kind& kind, double value) {
  const bool low = kind.above_low ? value > kind.low : value >= kind.low;
  const bool high = kind.below_high ? value < kind.high : value <= kind.high;
  return low && high;
}

// 500000000 of 5e8; nothing of 1.5, text or what does not fit 64 bits.
std::optional<Json> whole_number(const Kind& kind, const Json& value) {
  if (!value.is_number()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number != std::floor(number) || std::abs(number) >= 0x1p63) return std::nullopt;
  }
  const int64_t whole = value.get<int64_t>();
  if (!in_range(kind, static_cast<double>(whole))) return std::nullopt;
  return Json(whole);
}

std::optional<Json> real_number(const Kind& kind, const Json& value) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || !in_range(kind, value.get<double>())) {
    return std::nullopt;
  }
  return value;
}

// What JSON has no number for, as Python writes it; dump() makes null of it.
std::string as_written(const Json& value) {
  const double number = value.is_number_float() ? value.get<double>() : 0;
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return value.dump();
}

std::optional<Json> choice(const Kind& kind, const Json& value) {
  if (!value.is_string()) return std::nullopt;
  for (const std::string& name : split_choices(kind.choices)) {
    if (strcasecmp(name.c_str(), value.get_ref<const std::string&>().c_str()) == 0) return Json(name);
  }
  return std::nullopt;
}

bool all_of(const Json& list, bool (*test)(const Json&)) { return std::all_of(list.begin(), list.end(), test); }

// The value in its one form, or nothing when it is not of that kind.
std::optional<Json> as_kind(const Kind& kind, const Json& value) {
  const auto when = [&](bool fits) { return fits ? std::optional<Json>(value) : std::nullopt; };
  const auto is_number = [](const Json& v) { return v.is_number() && std::isfinite(v.get<double>()); };
  const auto is_text = [](const Json& v) { return v.is_string(); };
  switch (kind.type) {
    case Type::kBool:
      return when(value.is_boolean());
    case Type::kInt:
      return whole_number(kind, value);
    case Type::kIntOrNever:
      if (value.is_number_float() && std::isinf(value.get<double>()) && value.get<double>() > 0) return Json();
      return whole_number(kind, value);
    case Type::kNumber:
      return real_number(kind, value);
    case Type::kNumberOrList:
      return when(value.is_array() ? !value.empty() && all_of(value, is_number) : bool(real_number(kind, value)));
    case Type::kNumberList:
      return when(value.is_array() && std::all_of(value.begin(), value.end(), [&](const Json& each) {
                    return real_number(kind, each).has_value();
                  }));
    case Type::kIntList:
      return when(value.is_array() && std::all_of(value.begin(), value.end(), [&](const Json& each) {
                    return whole_number(kind, each).has_value();
                  }));
    case Type::kPair:
      return when(value.is_array() && value.size() == 2 && real_number(kind, value[0]) && real_number(kind, value[1]));
    case Type::kText:
      return when(value.is_string());
    case Type::kTextList:
      if (value.is_string()) return Json::array({value});
      return when(value.is_array() && all_of(value, is_text));
    case Type::kChoice:
      return choice(kind, value);
    case Type::kIntOrChoice: {
      auto found = choice(kind, value);
      return found ? found : whole_number(kind, value);
    }
    case Type::kObject:
    case Type::kOpenObject:
      return when(value.is_object());
    case Type::kAny:
      return value;
  }
  return std::nullopt;
}

// What text or a number stands for when it is not meant as such: true of "true" and of 1, 16 of "16".
std::optional<Json> read_loosely(const Kind& kind, const Json& value) {
  Json read;
  if (value.is_string()) {
    std::string text = value.get<std::string>();
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    read = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  } else if (kind.type == Type::kBool && value.is_number_integer() && (value == 0 || value == 1)) {
    read = value == 1;
  }
  if (read.is_discarded() || read.is_null() || read.is_string()) return std::nullopt;
  return as_kind(kind, read);
}

// The walk -----------------------------------------------------------------------------------------------------------

class Walk {
 public:
  Walk(Document& document, KeyCheck& check) : document_(document), check_(check) {}

  void object(const Pointer& at, const std::string& path) {
    const std::vector<std::string> names = names_in(document_.value.at(at));
    const std::string block(path.substr(0, path.find('.')));
    const std::string type = block_type(document_.value, path + ".");
    for (const std::string& name : names) {
      entry(at / name, path.empty() ? name : path + "." + name, type);
    }
    for (const Key& row : check_.table) {
      if (row.default_value != "required" || parent_of(row.path) != path || !applies(row, type)) continue;
      if (document_.value.at(at).contains(std::string(last_of(row.path)))) continue;
      check_.problems.add(fmt::format("'{}' is missing", row.path), document_.place(at),
                          fmt::format("add it: {} ({})", describe(row.kind), row.meaning));
    }
  }

 private:
  static std::vector<std::string> names_in(const Json& object) {
    std::vector<std::string> names;
    for (const auto& item : object.items()) names.push_back(item.key());
    return names;
  }

  void entry(const Pointer& at, const std::string& path, const std::string& type) {
    // Rows compare by pointer, not by dotted path: {"a.b": 1} is not {"a": {"b": 1}}.
    const Key* row = at == pointer_to(path) ? find_row(check_.table, path, type) : nullptr;
    if (row == nullptr) return unknown(at, path, type);
    const Place place = document_.place(at);
    if (row->status == Status::kRemoved) {
      return check_.problems.add(fmt::format("'{}' is no longer supported", path), place,
                                 std::string(row->notes.instead));
    }
    Json& value = document_.value[at];
    if (value.is_null() && row->default_value == "null") return;
    if (value == "auto" && is_auto(*row, path)) {
      if (row->kind.type == Type::kObject) value = nullptr;  // a block left to its default
      return;
    }
    auto converted = as_kind(row->kind, value);
    if (!converted && check_.lenient) {
      converted = read_loosely(row->kind, value);
      if (converted) {
        check_.warnings.push_back(
            fmt::format("{}: '{}' is {}, read as {}", place.text(), path, value.dump(), converted->dump()));
      }
    }
    if (!converted) return wrong_value(*row, path, value, place);
    value = *converted;
    if (status_of(*row, check_.door) == Status::kNoEffect && value != default_of(*row)) {
      check_.warnings.push_back(fmt::format("{}: '{}' is accepted but has no effect", place.text(), path));
    }
    if (row->kind.type == Type::kObject && !(last_of(path) == "params" && !type.empty() && !lists(path, type))) {
      object(at, path);
    }
  }

  bool lists(const std::string& path, const std::string& type) const {
    return lists_type(check_.table, path.substr(0, path.find('.')), type);
  }

  bool is_auto(const Key& row, const std::string& path) const {
    if (row.kind.type == Type::kAny || choice(row.kind, "auto")) return false;  // "auto" is a value of its own there
    return check_.accepts_auto != nullptr && check_.accepts_auto(path);
  }

  void wrong_value(const Key& row, const std::string& path, const Json& value, const Place& place) {
    std::string fix = "use " + describe(row.kind);
    if (row.kind.type == Type::kChoice && value.is_string()) {
      const auto nearest = nearest_name(value.get<std::string>(), split_choices(row.kind.choices));
      if (nearest) fix = fmt::format("did you mean '{}'? known: {}", *nearest, describe(row.kind));
    } else if (const auto meant = read_loosely(row.kind, value)) {
      fix = fmt::format("write {}{}", meant->dump(), value.is_string() ? " without quotes" : "");
    } else if (value == "auto") {
      fix += "; \"auto\" cannot be filled in here";
    }
    check_.problems.add(fmt::format("'{}' is {}", path, as_written(value)), place, fix);
  }

  void unknown(const Pointer& at, const std::string& path, const std::string& type) {
    const std::string name = at.back();
    if (name.rfind("_comment", 0) == 0 || name.rfind("//", 0) == 0) return;  // how people comment in plain JSON
    const std::string parent = dotted(at.parent_pointer());
    const std::string fix = advice(name, parent, type);
    const Place place = document_.place(at);
    if (check_.lenient) {
      check_.warnings.push_back(fmt::format("{}: unknown key '{}' is ignored; {}", place.text(), path, fix));
      return;
    }
    check_.problems.add(fmt::format("unknown key '{}'", path), place, fix);
  }

  std::string advice(const std::string& name, const std::string& parent, const std::string& type) const {
    std::vector<std::string> siblings;
    std::string_view elsewhere;
    for (const Key& row : check_.table) {
      if (parent_of(row.path) == parent) {
        if (applies(row, type) || type.empty()) siblings.emplace_back(last_of(row.path));
      } else if (last_of(row.path) == name && elsewhere.empty() && row.status != Status::kRemoved) {
        elsewhere = row.path;
      }
    }
    const auto nearest = nearest_name(name, siblings);
    if (nearest) return fmt::format("did you mean '{}'?", *nearest);
    if (!elsewhere.empty()) return fmt::format("did you mean '{}'?", elsewhere);
    if (siblings.size() <= 20) return fmt::format("known here: {}", fmt::join(siblings, ", "));
    return "remove it; `tessera config keys` lists the known keys";
  }

  Document& document_;
  KeyCheck& check_;
};

}  // namespace

Pointer pointer_to(std::string_view path) {
  std::string text(path.empty() ? "" : "/");
  for (const char c : path) text += c == '.' ? std::string("/") : c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return Pointer(text);
}

std::string block_type(const Json& root, std::string_view path) {
  const size_t dot = path.find('.');
  if (dot == std::string_view::npos) return "";
  const Pointer type = Pointer() / std::string(path.substr(0, dot)) / "type";
  if (!root.contains(type) || !root.at(type).is_string()) return "";
  return root.at(type).get<std::string>();
}

void rename_aliases(Document& document, KeyCheck& check) {
  for (const Key& row : check.table) {
    if (row.status != Status::kAlias && row.status != Status::kDeprecated) continue;
    const Pointer from = pointer_to(row.path), to = pointer_to(row.notes.instead);
    if (!document.value.contains(from)) continue;
    const Place place = document.place(from);
    const Pointer parent = to.parent_pointer();
    if (document.value.contains(parent) && !document.value.at(parent).is_object()) continue;  // reported by check_keys
    if (document.value.contains(to)) {
      check.problems.add(
          fmt::format("'{}' and '{}' are both given, but they are the same key", row.path, row.notes.instead), place,
          fmt::format("keep '{}'; it is at {}", row.notes.instead, document.place(to).text()));
      document.erase(from);
      continue;
    }
    if (row.status == Status::kDeprecated) {
      check.warnings.push_back(
          fmt::format("{}: '{}' is an old name; write '{}'", place.text(), row.path, row.notes.instead));
    }
    document.move(from, to);
  }
}

void check_keys(Document& document, KeyCheck& check) {
  // `type` decides which rows apply to its block, so it gets its one spelling first.
  for (const Key& row : check.table) {
    if (last_of(row.path) != "type" || !document.value.contains(pointer_to(row.path))) continue;
    Json& value = document.value[pointer_to(row.path)];
    if (const auto name = as_kind(row.kind, value)) value = *name;
  }
  Walk(document, check).object(Pointer(), "");
}

std::vector<ResolvedKey> resolve_keys(const Document& document, const KeyCheck& check) {
  std::vector<ResolvedKey> result;
  for (const Key& row : check.table) {
    if (row.status == Status::kAlias || row.status == Status::kDeprecated || row.status == Status::kRemoved) continue;
    if (!applies(row, block_type(document.value, row.path))) continue;
    const Pointer at = pointer_to(row.path);
    const bool given = document.value.contains(at) && !document.value.at(at).is_null();
    const bool is_block = row.kind.type == Type::kObject;
    if (is_block && !(given && row.status == Status::kNotYet)) continue;
    if (!given) {
      if (row.default_value == "required" || in_absent_block(document.value, check.table, row)) continue;
    }
    const std::string where = given ? document.place(at).text() : "";
    const Status status = status_of(row, check.door);
    result.push_back({.path = std::string(row.path),
                      .value = given ? document.value.at(at) : default_of(row),
                      .origin = given ? where : "default",
                      .given = given,
                      .where = where,
                      .acts = status == Status::kHonoured || status == Status::kNotYet,
                      .of_host = row.notes.of_host});
  }
  return result;
}

}  // namespace tessera::config

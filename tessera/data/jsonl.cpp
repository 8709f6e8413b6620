// JSON Lines: each line is an object with a string, or a label, under each column's name. Blank lines are skipped.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"
#include "tessera/data/readers.h"

namespace tessera::data {

namespace {

using nlohmann::json;

json parse_line(const std::string& line, const std::string& where) {
  json object = parse_json(line, {.where = where,
                                  .fix = "write one {…} per line; a cut last line means the file is "
                                         "truncated"});
  if (object.is_object()) return object;
  throw Error(ErrorKind::kData, {"the line is JSON, but not an object", where, "write one {…} per line"});
}

// "translation.en" is a key, or one of an object under a key; null where there is neither.
const json* value_at(const json& object, const std::string& column) {
  if (const auto found = object.find(column); found != object.end()) return &*found;
  const size_t dot = column.find('.');
  if (dot == std::string::npos) return nullptr;
  const auto outer = object.find(column.substr(0, dot));
  return outer == object.end() || !outer->is_object() ? nullptr : value_at(*outer, column.substr(dot + 1));
}

const std::string& text_of(const json& value, const std::string& column, const std::string& where) {
  if (value.is_string()) return value.get_ref<const std::string&>();
  throw Error(ErrorKind::kData, {fmt::format("'{}' is {:.100}, not a string", column,
                                             value.dump(-1, ' ', false, json::error_handler_t::replace)),
                                 where, "write a text in quotes, or name another column"});
}

std::string label_of(const json& value, const std::string& column, const std::string& where) {
  if (value.is_string()) return value.get_ref<const std::string&>();
  if (value.is_number_integer() || value.is_boolean()) return value.dump();
  throw Error(ErrorKind::kData, {fmt::format("'{}' is {:.100}, which is no label", column,
                                             value.dump(-1, ' ', false, json::error_handler_t::replace)),
                                 where, "a label is a text, a whole number, true or false"});
}

std::string value_of(const json& object, const Column& column, const std::string& where) {
  const json* const value = value_at(object, column.name);
  if (value != nullptr)
    return column.holds_labels ? label_of(*value, column.name, where) : text_of(*value, column.name, where);
  std::vector<std::string> columns;
  for (const auto& item : object.items()) columns.push_back(item.key());
  throw missing_column(column.name, columns, where);
}

}  // namespace

void read_jsonl(const std::string& path, std::span<const Column> columns, const TakeRow& take) {
  std::ifstream file = open_input_file(path);
  std::string line;
  std::vector<std::string> values(columns.size());
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    const json object = parse_line(line, where);
    for (size_t i = 0; i < columns.size(); ++i) values[i] = value_of(object, columns[i], where);
    take(values);
  }
  require_read_whole(file, path);
}

}  // namespace tessera::data

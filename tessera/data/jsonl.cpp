// JSON Lines: each line is an object with a string under the column's name. Blank lines are skipped.
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
json* value_at(json& object, const std::string& column) {
  if (const auto found = object.find(column); found != object.end()) return &*found;
  const size_t dot = column.find('.');
  if (dot == std::string::npos) return nullptr;
  const auto outer = object.find(column.substr(0, dot));
  return outer == object.end() || !outer->is_object() ? nullptr : value_at(*outer, column.substr(dot + 1));
}

}  // namespace

std::vector<std::string> read_jsonl(const std::string& path, const std::string& text_column) {
  std::ifstream file = open_input_file(path);
  std::vector<std::string> rows;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    json object = parse_line(line, where);
    json* const text = value_at(object, text_column);
    if (text == nullptr) {
      std::vector<std::string> columns;
      for (const auto& [key, value] : object.items()) columns.push_back(key);
      throw missing_column(text_column, columns, where);
    }
    if (!text->is_string()) {
      throw Error(ErrorKind::kData,
                  {fmt::format("'{}' is {}, not a string", text_column, text->type_name()), where, ""});
    }
    rows.push_back(std::move(text->get_ref<std::string&>()));
  }
  require_read_whole(file, path);
  return rows;
}

}  // namespace tessera::data

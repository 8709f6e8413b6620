#include "tessera/data/json_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/base/json_text.h"

namespace tessera::data {
namespace {

int64_t visit_list(const std::string& text, const std::string& path, const VisitJsonRow& visit) {
  int64_t number = 0;
  for (const nlohmann::ordered_json& row : parse_ordered_json(text, {.where = path}))
    visit(row, fmt::format("{}, row {}", path, ++number));
  return number;
}

int64_t visit_lines(const std::string& text, const std::string& path, const VisitJsonRow& visit) {
  int64_t number = 0, rows = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    visit(parse_ordered_json(
              line, {.where = where, .fix = "write one {…} per line; a cut last line means the file is truncated"}),
          where);
    ++rows;
  }
  return rows;
}

}  // namespace

void for_each_json_row(const std::string& path, const VisitJsonRow& visit) {
  std::string text = read_input_file(path);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_list = first != std::string::npos && text[first] == '[';
  const int64_t rows = is_list ? visit_list(text, path, visit) : visit_lines(text, path, visit);
  if (rows == 0) throw Error(ErrorKind::kData, {"the file has no rows", path, "give a file with rows"});
}

}  // namespace tessera::data

// JSON from outside: one error for text that is none, in time and memory bounded by its size.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {

inline constexpr int kDeepestNesting = 100;  // levels of lists and blocks in anything that is read

struct JsonOrigin {
  std::string where;  // a path, or a file and a line
  std::string fix = "check the file, or get it again";
  ErrorKind kind = ErrorKind::kData;
};

// Throws an Error of origin.kind where the text is not JSON, is nested deeper than kDeepestNesting, names something
// twice in one block, or has a number that no double holds: with line and column.
nlohmann::json parse_json(std::string_view text, const JsonOrigin& origin);

// The same with the names of each block in the order in which they stand.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonOrigin& origin);

// The same of a file, which must hold an object.
nlohmann::json read_json_file(const std::filesystem::path& path);

// Whether JSON can hold the text: nlohmann-json takes any bytes, and fails when it is to write them.
bool is_utf8(const std::string& text);

}  // namespace tessera

// Rows of JSON: of a file each line one (blank ones are skipped), or the whole file a list of them.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::data {

// `where`: file and line, or file and number in the list.
using VisitJsonRow = std::function<void(const nlohmann::ordered_json& row, const std::string& where)>;

// In the file's order. ErrorKind::kData where the file is missing, damaged or has no rows, and what `visit` throws.
void for_each_json_row(const std::string& path, const VisitJsonRow& visit);

}  // namespace tessera::data

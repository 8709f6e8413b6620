// Plain text: a row for each line. A byte order mark and the carriage returns of Windows are no part of a row.
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/input_file.h"
#include "tessera/data/readers.h"

namespace tessera::data {

void read_text(const std::string& path, std::span<const Column> columns, const TakeRow& take) {
  const char* const fix = "use .jsonl, .csv or .parquet";
  for (const Column& column : columns) {
    if (column.holds_labels) throw Error(ErrorKind::kData, {"a .txt file has texts alone, and no labels", path, fix});
  }
  if (columns.size() > 1) throw Error(ErrorKind::kData, {"a .txt file has one text a row, and no columns", path, fix});
  std::ifstream file = open_input_file(path);
  std::string line;
  for (bool first = true; std::getline(file, line); first = false) {
    if (first && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (line.ends_with('\r')) line.pop_back();
    take({&line, 1});
  }
  require_read_whole(file, path);
}

}  // namespace tessera::data

// Plain text: a row for each line. A byte order mark and the carriage returns of Windows are no part of a row.
#include <fstream>

#include "tessera/base/input_file.h"
#include "tessera/data/readers.h"

namespace tessera::data {

std::vector<std::string> read_text(const std::string& path, const std::string& /*text_column*/) {
  std::ifstream file = open_input_file(path);
  std::vector<std::string> rows;
  std::string line;
  for (bool first = true; std::getline(file, line); first = false) {
    if (first && line.starts_with("\xEF\xBB\xBF")) line.erase(0, 3);
    if (line.ends_with('\r')) line.pop_back();
    rows.push_back(std::move(line));
  }
  require_read_whole(file, path);
  return rows;
}

}  // namespace tessera::data

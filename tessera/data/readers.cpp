#include "tessera/data/readers.h"

#include <fmt/format.h>

#include <filesystem>

#include "tessera/base/suggest.h"
#include "tessera/data/reader.h"
#include "tessera/data/unicode.h"

namespace tessera::data {

Registry<ReadTexts> readers() {
  static constexpr Registry<ReadTexts>::Entry kEntries[] = {
      {"parquet", "Apache Parquet, a column of strings", read_parquet},
      {"jsonl", "JSON Lines: one object a line", read_jsonl},
      {"json", "the same as jsonl", read_jsonl},
      {"csv", "comma-separated, the first row names the columns (RFC 4180)", read_csv},
      {"txt", "plain text, each line that is not blank is a row", read_text},
  };
  return {"reader for files of the kind", kEntries};
}

Error missing_column(const std::string& column, std::span<const std::string> columns, const std::string& where) {
  const auto nearest = nearest_name(column, columns);
  return Error(
      ErrorKind::kData,
      {fmt::format("there is no column '{}'", column), where,
       (nearest ? fmt::format("did you mean '{}'? ", *nearest) : std::string()) +
           fmt::format("columns: {}", columns.empty() ? "none" : fmt::format("{}", fmt::join(columns, ", ")))});
}

std::vector<std::string> read_texts(const std::string& path, const std::string& text_column) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  if (!fs::exists(status)) throw Error(ErrorKind::kData, {"there is no such file", path, "check the path"});
  if (fs::is_directory(status)) throw Error(ErrorKind::kData, {"this is a folder", path, "name the files in it"});
  if (fs::file_size(path, failed) == 0 && !failed) throw Error(ErrorKind::kData, {"the file is empty", path, ""});

  const std::string extension = fs::path(path).extension().string();
  const ReadTexts read = readers().find(extension.empty() ? extension : extension.substr(1), path).make;
  std::vector<std::string> texts = read(path, text_column);
  if (texts.empty()) throw Error(ErrorKind::kData, {"the file holds no rows", path, "give a file with text"});
  for (size_t row = 0; row < texts.size(); ++row) {
    if (const auto offset = find_ill_formed_utf8(texts[row])) {
      throw Error(ErrorKind::kData, {fmt::format("row {} is not UTF-8 from byte {} on", row + 1, *offset), path,
                                     "convert the file to UTF-8"});
    }
  }
  return texts;
}

}  // namespace tessera::data

#include "tessera/data/readers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/suggest.h"
#include "tessera/data/reader.h"
#include "tessera/data/unicode.h"

namespace tessera::data {

Registry<ReadColumns> readers() {
  static constexpr Registry<ReadColumns>::Entry kEntries[] = {
      {"parquet", "Apache Parquet, a column of strings", read_parquet},
      {"jsonl", "JSON Lines: one object per line", read_jsonl},
      {"json", "the same as jsonl", read_jsonl},
      {"csv", "comma-separated values; the first row names the columns (RFC 4180)", read_csv},
      {"txt", "plain text, each line is a row", read_text},
  };
  return {"reader for files of type", kEntries};
}

MissingColumn missing_column(const std::string& column, std::span<const std::string> columns,
                             const std::string& where) {
  const auto nearest = nearest_name(column, columns);
  return {ErrorKind::kData,
          {fmt::format("there is no column '{}'", column), where,
           (nearest ? fmt::format("did you mean '{}'? ", *nearest) : std::string()) +
               fmt::format("columns: {}", columns.empty() ? "none" : fmt::format("{}", fmt::join(columns, ", ")))}};
}

namespace {

namespace fs = std::filesystem;

ReadColumns reader_of(const std::string& path) {
  const std::string extension = fs::path(path).extension().string();
  return readers().find(extension.empty() ? extension : extension.substr(1), path).make;
}

bool has_reader(const fs::path& path) {
  const std::string extension = path.extension().string();
  const auto known = readers().names();
  return extension.size() > 1 && std::find(known.begin(), known.end(), extension.substr(1)) != known.end();
}

std::vector<std::string> files_matching(const std::string& pattern) {
  glob_t found{};
  const int failed = glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> files;
  if (failed == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (files.empty()) {
    throw Error(ErrorKind::kData, {"no files match the pattern", pattern, "check the path"});
  }
  return files;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    if (entry.is_regular_file() && has_reader(entry.path())) files.push_back(entry.path().string());
  }
  if (failed) throw Error(ErrorKind::kData, {"the folder cannot be read: " + failed.message(), folder, ""});
  if (files.empty()) {
    throw Error(ErrorKind::kData,
                {"the folder has no text files", folder,
                 fmt::format("put files there whose names end in .{}", fmt::join(readers().names(), ", ."))});
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<std::string> expand_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code failed;
    const bool is_pattern = path.find_first_of("*?[") != std::string::npos && !fs::exists(path, failed);
    if (is_pattern || fs::is_directory(path, failed)) {
      for (std::string& file : is_pattern ? files_matching(path) : files_in(path)) files.push_back(std::move(file));
    } else {
      files.push_back(path);
    }
  }
  return files;
}

void check_file(const std::string& path) {
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  if (!fs::exists(status)) throw Error(ErrorKind::kData, {"no such file", path, "check the path"});
  if (fs::is_directory(status)) throw Error(ErrorKind::kData, {"it is a folder", path, "name the files in it"});
  if (fs::file_size(path, failed) == 0 && !failed) {
    throw Error(ErrorKind::kData, {"the file is empty", path, "write samples into it, or name another"});
  }
  reader_of(path);
}

void for_each_row(const std::string& path, std::span<const Column> columns, const TakeRow& take) {
  check_file(path);
  int64_t row = 0;
  reader_of(path)(path, columns, [&](std::span<std::string> values) {
    ++row;
    for (const std::string& value : values) {
      if (const auto offset = find_ill_formed_utf8(value)) {
        throw Error(ErrorKind::kData, {fmt::format("row {} is not valid UTF-8 at byte {}", row, *offset), path,
                                       "convert the file to UTF-8"});
      }
    }
    take(values);
  });
  if (row == 0) throw Error(ErrorKind::kData, {"the file has no rows", path, "give a file with text"});
}

namespace {

void for_each_value(const std::string& path, const Column& column, const TakeText& take) {
  for_each_row(path, {&column, 1}, [&](std::span<std::string> values) { take(std::move(values.front())); });
}

std::vector<std::string> values_of(const std::string& path, const Column& column) {
  std::vector<std::string> values;
  for_each_value(path, column, [&](std::string value) { values.push_back(std::move(value)); });
  return values;
}

}  // namespace

std::vector<std::string> read_texts(const std::string& path, const std::string& text_column) {
  return values_of(path, {text_column});
}

void for_each_text(const std::string& path, const std::string& text_column, const TakeText& take) {
  for_each_value(path, {text_column}, take);
}

std::vector<std::string> read_labels(const std::string& path, const std::string& label_column) {
  return values_of(path, {.name = label_column, .holds_labels = true});
}

}  // namespace tessera::data

// The readers, by file extension. To add one: a function in a file of its own, a declaration here and a line in
// readers.cpp. read_texts (reader.h) checks what is common to all: that the file is there, is not empty, holds rows,
// and that each row is UTF-8.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/registry.h"

namespace tessera::data {

using ReadTexts = std::vector<std::string> (*)(const std::string& path, const std::string& text_column);
Registry<ReadTexts> readers();

std::vector<std::string> read_parquet(const std::string& path, const std::string& text_column);
std::vector<std::string> read_jsonl(const std::string& path, const std::string& text_column);
std::vector<std::string> read_csv(const std::string& path, const std::string& text_column);
std::vector<std::string> read_text(const std::string& path, const std::string& text_column);

// "there is no column 'txt'", with the columns that there are and the nearest of them. `where` is a path or path:line.
Error missing_column(const std::string& column, std::span<const std::string> columns, const std::string& where);

}  // namespace tessera::data

// The readers, by file extension. To add one: a function in a file of its own, a declaration here and a line in
// readers.cpp. for_each_row (reader.h) checks what is common to all: that the file is there, is not empty, holds rows,
// and that each value is UTF-8.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/registry.h"
#include "tessera/data/reader.h"

namespace tessera::data {

// Gives each row's values to `take`, in order, and keeps none of them. The columns may be the same.
using ReadColumns = void (*)(const std::string& path, std::span<const Column> columns, const TakeRow& take);
Registry<ReadColumns> readers();

void read_parquet(const std::string& path, std::span<const Column> columns, const TakeRow& take);
void read_jsonl(const std::string& path, std::span<const Column> columns, const TakeRow& take);
void read_csv(const std::string& path, std::span<const Column> columns, const TakeRow& take);
void read_text(const std::string& path, std::span<const Column> columns, const TakeRow& take);

class MissingColumn : public Error {
 public:
  using Error::Error;
};

// "there is no column 'txt'", with the columns that there are and the nearest of them. `where` is a path or path:line.
MissingColumn missing_column(const std::string& column, std::span<const std::string> columns, const std::string& where);

}  // namespace tessera::data

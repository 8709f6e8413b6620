// The readers, by file extension. To add one: a function in a file of its own, a declaration here and a line in
// readers.cpp. read_texts and read_labels (reader.h) check what is common to all: that the file is there, is not empty,
// holds rows, and that each row is UTF-8.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/registry.h"
#include "tessera/data/reader.h"

namespace tessera::data {

// What is read of a file.
struct Column {
  std::string name;
  bool holds_labels = false;  // not only text: also whole numbers and truth values, read as "3" and "true"
};

// Gives each row's value to `take`, in order, and keeps none of them.
using ReadColumn = void (*)(const std::string& path, const Column& column, const TakeText& take);
Registry<ReadColumn> readers();

void read_parquet(const std::string& path, const Column& column, const TakeText& take);
void read_jsonl(const std::string& path, const Column& column, const TakeText& take);
void read_csv(const std::string& path, const Column& column, const TakeText& take);
void read_text(const std::string& path, const Column& column, const TakeText& take);

class MissingColumn : public Error {
 public:
  using Error::Error;
};

// "there is no column 'txt'", with the columns that there are and the nearest of them. `where` is a path or path:line.
MissingColumn missing_column(const std::string& column, std::span<const std::string> columns, const std::string& where);

}  // namespace tessera::data

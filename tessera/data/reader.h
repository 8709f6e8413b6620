// Reads the texts of one file, one document a row, in the file's order. The format follows from the file's extension;
// readers.h has the table.
//
//   const std::vector<std::string> texts = read_texts("train.parquet", "text");
//
// Rows are valid UTF-8. Empty ones are kept (WikiText has them), so that a row's number is its place in the file; blank
// lines of jsonl and csv, which have another syntax for an empty text, are no rows. `text_column` is not looked at for
// txt.
//
// Throws ErrorKind::kData when the file is missing, empty, damaged, has no such column (naming those there are), has a
// row without a text or is not UTF-8; ErrorKind::kUsage for an extension that no reader takes. Safe to call from any
// thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tessera::data {

// What is read of a file.
struct Column {
  std::string name;
  bool holds_labels = false;  // not only text: also whole numbers and truth values, read as "3" and "true"
};

// Reads the file once: gives each row's values, one for each of the columns, to `take`, which may move them out. No
// more than a piece of the file is held at a time. A number with a fraction is no label; a .txt file, which has one
// text a row, has neither labels nor several columns: errors as above.
using TakeRow = std::function<void(std::span<std::string> values)>;
void for_each_row(const std::string& path, std::span<const Column> columns, const TakeRow& take);

// Of a column of texts: all at once, and one by one.
std::vector<std::string> read_texts(const std::string& path, const std::string& text_column);
using TakeText = std::function<void(std::string text)>;
void for_each_text(const std::string& path, const std::string& text_column, const TakeText& take);

// Of a column of labels.
std::vector<std::string> read_labels(const std::string& path, const std::string& label_column);

// The files that are meant: a pattern ("shards/*.parquet") stands for those that match, a folder for the files right in
// it that a reader takes; both in the order of their names. Any other path stays as it is, there or not.
// ErrorKind::kData when a pattern or a folder gives no file.
std::vector<std::string> expand_files(const std::vector<std::string>& paths);

// Throws what read_texts would throw of a file without reading its rows: missing, empty, a folder, no reader.
void check_file(const std::string& path);

}  // namespace tessera::data

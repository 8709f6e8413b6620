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
#include <string>
#include <vector>

namespace tessera::data {

std::vector<std::string> read_texts(const std::string& path, const std::string& text_column);

// The same one by one, for files that are larger than memory: no more than a piece of the file is held at a time.
using TakeText = std::function<void(std::string text)>;
void for_each_text(const std::string& path, const std::string& text_column, const TakeText& take);

// The same of a column of labels: text, whole numbers ("3") or truth values ("true"). A number with a fraction is an
// error, and so is a .txt file, which has texts alone.
std::vector<std::string> read_labels(const std::string& path, const std::string& label_column);

// The files that are meant: a pattern ("shards/*.parquet") stands for those that match, a folder for the files right in
// it that a reader takes; both in the order of their names. Any other path stays as it is, there or not.
// ErrorKind::kData when a pattern or a folder gives no file.
std::vector<std::string> expand_files(const std::vector<std::string>& paths);

// Throws what read_texts would throw of a file without reading its rows: missing, empty, a folder, no reader.
void check_file(const std::string& path);

}  // namespace tessera::data
